'use strict'

// The genuine topic-relay client: node koshare.cjs WS_URL [reconnecting]
// Commands: {"do": "subscribe" | "unsubscribe" | "broadcast" | "message" | "quit", "topic", "body", "dst"}
// Events: ready, subscribed, packet (with `src` and, of direct messages, `dst`), unsubscribed, sent, closed, error
const { default: KoshareClient, KoshareReconnectClient } = require('@yume-chan/koshare-router-client')
const { tell, tellError, obey } = require('./lines.cjs')

async function main (url, form) {
  const client = await (form === 'reconnecting' ? KoshareReconnectClient : KoshareClient).connect(url)
  const handlers = new Map()
  client.socket.addEventListener('close', () => tell('closed'))
  tell('ready')
  await obey({
    async subscribe ({ topic }) {
      const handler = packet => tell('packet', { packet })
      await client.subscribe(topic, handler)
      handlers.set(topic, handler)
      tell('subscribed', { topic })
    },
    async unsubscribe ({ topic }) {
      await client.unsubscribe(topic, handlers.get(topic))
      handlers.delete(topic)
      tell('unsubscribed', { topic })
    },
    async broadcast ({ topic, body }) {
      await client.broadcast(topic, body)
      tell('sent', { topic })
    },
    async message ({ topic, dst, body }) {
      await client.message(topic, dst, body)
      tell('sent', { topic, dst })
    },
    async quit () {
      client.close()
    }
  })
}

main(...process.argv.slice(2)).catch(error => {
  tellError(error)
  process.exit(1)
})
