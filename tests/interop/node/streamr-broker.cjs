// A Streamr broker with storage, on the genuine library streamr-client-protocol: node streamr-broker.cjs PORT [PUBLISHER...]
// It reads, validates, stores and hands on messages as the genuine broker does; only these publishers are permitted, or
// all if none is named. It prints a line of JSON when it listens, and one for each message that it takes.
"use strict";

const { ControlLayer, MessageLayer, StreamMessageValidator } = require("streamr-client-protocol");
const WebSocket = require("ws");

const { ControlMessage } = ControlLayer;
const { StreamMessage } = MessageLayer;
const [port, ...permitted] = process.argv.slice(2);
const validator = new StreamMessageValidator({
  getStream: async () => ({ partitions: 1, requireSignedData: false, requireEncryptedData: false }),
  isPublisher: async (address) => permitted.length === 0 || permitted.includes(address.toLowerCase()),
  isSubscriber: async () => true,
});
const stored = new Map(); // by stream and partition, the messages by their id
const listeners = new Map(); // by stream and partition

const tell = (event) => process.stdout.write(JSON.stringify(event) + "\n");
const of = (map, key, make) => map.get(key) ?? map.set(key, make()).get(key);
const key = ({ streamId, streamPartition }) => JSON.stringify([streamId, streamPartition]);

function publish(message) {
  const id = message.messageId;
  of(stored, key(id), () => new Map()).set(JSON.stringify(id.toArray()), message);
  tell({ event: "published", id: id.toArray(), content: message.getSerializedContent() });
  for (const send of of(listeners, key(id), () => new Map()).values()) {
    send(new ControlLayer.BroadcastMessage({ requestId: "", streamMessage: message }));
  }
}

function resend(request, send) {
  const all = [...of(stored, key(request), () => new Map()).values()].sort((a, b) => a.getTimestamp() - b.getTimestamp());
  const { type, requestId, streamId, streamPartition, numberLast, fromMsgRef } = request;
  const last = type === ControlMessage.TYPES.ResendLastRequest;
  const found = last ? all.slice(-numberLast) : all.filter((each) => each.getTimestamp() >= fromMsgRef.timestamp);
  const where = { requestId, streamId, streamPartition };
  if (found.length === 0) return send(new ControlLayer.ResendResponseNoResend(where));
  send(new ControlLayer.ResendResponseResending(where));
  for (const streamMessage of found) send(new ControlLayer.UnicastMessage({ requestId, streamMessage }));
  send(new ControlLayer.ResendResponseResent(where));
}

async function handle(socket, request, send) {
  const { type, requestId, streamId, streamPartition } = request;
  const { TYPES } = ControlMessage;
  if (type === TYPES.PublishRequest) {
    await validator.validate(request.streamMessage);
    publish(request.streamMessage);
  } else if (type === TYPES.SubscribeRequest) {
    of(listeners, key(request), () => new Map()).set(socket, send);
    send(new ControlLayer.SubscribeResponse({ requestId, streamId, streamPartition }));
  } else if (type === TYPES.ResendLastRequest || type === TYPES.ResendFromRequest) {
    resend(request, send);
  } else {
    throw new Error(`Unknown request type: ${type}`);
  }
}

const server = new WebSocket.Server({ host: "127.0.0.1", port: Number(port) }, () => tell({ event: "listening" }));
server.on("connection", (socket, { url }) => {
  const query = new URL(url, "http://localhost").searchParams;
  const versions = ["controlLayerVersion", "messageLayerVersion"].map((name) => Number(query.get(name)));
  if (!versions.every(Boolean)) return socket.close(1008, "Missing version negotiation!");
  const send = (answer) => socket.send(answer.serialize(...versions));
  let order = Promise.resolve(); // requests of a connection are handled in order
  socket.on("close", () => listeners.forEach((each) => each.delete(socket)));
  socket.on("message", (data) => {
    order = order.then(async () => {
      const request = ControlMessage.deserialize(data, false);
      await handle(socket, request, send).catch(({ message }) => {
        const errorMessage = `Publish request failed: ${message}`;
        send(new ControlLayer.ErrorResponse({ requestId: request.requestId, errorMessage, errorCode: "REQUEST_FAILED" }));
      });
    });
  });
});
