// A Streamr broker on the genuine libraries, on a free port: node streamr.cjs FOLDER [once]
// FOLDER holds node_modules with streamr-client-protocol and ws. It reads, validates and hands on as the genuine broker
// does, which serialises each message for each subscriber; with `once` it does so once for each pair of versions.
"use strict";

const [folder, once] = process.argv.slice(2);
const load = (name) => require(require.resolve(name, { paths: [folder] }));
const { ControlLayer, StreamMessageValidator } = load("streamr-client-protocol");
const WebSocket = load("ws");

const { ControlMessage, BroadcastMessage, SubscribeResponse, ErrorResponse } = ControlLayer;
const stream = { partitions: 1, requireSignedData: false, requireEncryptedData: false };
const validator = new StreamMessageValidator({
  getStream: async () => stream,
  isPublisher: async () => true,
  isSubscriber: async () => true,
});
const subscribers = new Map();

function hand(streamMessage) {
  const listeners = subscribers.get(streamMessage.getStreamId());
  if (listeners === undefined) return;
  if (once) {
    const frames = new Map();
    for (const { socket, control, message } of listeners) {
      const key = `${control}/${message}`;
      if (!frames.has(key)) {
        frames.set(key, new BroadcastMessage({ requestId: "", streamMessage }).serialize(control, message));
      }
      socket.send(frames.get(key));
    }
  } else {
    const broadcast = new BroadcastMessage({ requestId: "", streamMessage });
    for (const { socket, control, message } of listeners) socket.send(broadcast.serialize(control, message));
  }
}

async function handle(connection, data) {
  const request = ControlMessage.deserialize(data, false);
  const { requestId, streamId, streamPartition } = request;
  switch (request.type) {
    case ControlMessage.TYPES.PublishRequest:
      await validator.validate(request.streamMessage);
      hand(request.streamMessage);
      break;
    case ControlMessage.TYPES.SubscribeRequest: {
      if (!subscribers.has(streamId)) subscribers.set(streamId, new Set());
      subscribers.get(streamId).add(connection);
      const answer = new SubscribeResponse({ requestId, streamId, streamPartition });
      connection.socket.send(answer.serialize(connection.control, connection.message));
      break;
    }
    default:
      throw new Error(`Unknown request type: ${request.type}`);
  }
}

const server = new WebSocket.Server({ host: "127.0.0.1", port: 0, perMessageDeflate: false }, () => {
  const http = `127.0.0.1:${server.address().port}`;
  process.stdout.write(JSON.stringify({ event: "ready", http, pid: process.pid }) + "\n");
});
server.on("connection", (socket, { url }) => {
  const query = new URL(url, "http://localhost").searchParams;
  const control = Number(query.get("controlLayerVersion"));
  const message = Number(query.get("messageLayerVersion"));
  const connection = { socket, control, message };
  socket.on("close", () => subscribers.forEach((listeners) => listeners.delete(connection)));
  socket.on("message", (data) => {
    handle(connection, data).catch((error) => {
      const failure = new ErrorResponse({ requestId: "", errorMessage: error.message, errorCode: "REQUEST_FAILED" });
      socket.send(failure.serialize(control, message));
    });
  });
});
