"""The Streamr adapter: control protocol v1 and v2, stream messages v30, v31 and v32."""
