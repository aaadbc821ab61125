// The reference topic-relay server on a free port: node relay.cjs FOLDER, where FOLDER holds its node_modules.
"use strict";

const folder = process.argv[2];
const { KoshareServer } = require(require.resolve("@yume-chan/koshare-router", { paths: [folder] }));

KoshareServer.listen({ host: "127.0.0.1", port: 0 }).then((server) => {
  const http = `127.0.0.1:${server.socket.address().port}`;
  process.stdout.write(JSON.stringify({ event: "ready", http, pid: process.pid }) + "\n");
});
