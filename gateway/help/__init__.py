"""The documentation, served at `/help` from its Markdown files; `docs` here is a link to the folder of that name."""
