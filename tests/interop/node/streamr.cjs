'use strict'

// A genuine Streamr client: node streamr.cjs VERSION WS_URL REST_URL PRIVATE_KEY [OPTIONS]
// VERSION is 2.2.7, 4.1.6 or 5.1.0; an empty PRIVATE_KEY is a client without login; OPTIONS is a JSON object
// of client options, such as {"verifySignatures": "always"}.
// Commands: {"do": "subscribe" | "unsubscribe", "stream", "partition"}, {"do": "publish", "stream", "content",
// "key"}, {"do": "resend", "stream", "partition", "resend": {"last": 2}}, {"do": "rotate", "stream"} (5.1.0),
// {"do": "quit"}
// Events: ready, subscribed, message, unsubscribed, published, resent (with `count`; after the messages of the
// resend, which have `resent`), rotated, disconnected, error
require('./webcrypto.cjs')
const { once } = require('node:events')
const { tell, tellError, obey } = require('./lines.cjs')

const quiet = () => {}
// The clients log to stdout and stderr on their own; stdout is ours.
console.log = console.info = console.warn = console.error = quiet

function teller (extra) {
  return (content, message) => {
    const { streamId, streamPartition, timestamp, sequenceNumber, publisherId, msgChainId } = message.messageId
    tell('message', {
      stream: streamId,
      partition: streamPartition,
      content,
      id: [streamId, streamPartition, timestamp, sequenceNumber, publisherId, msgChainId],
      signed: Boolean(message.signature),
      ...extra
    })
  }
}

const keyOf = ({ stream, partition = 0 }) => JSON.stringify([stream, partition])

// Versions 2 and 4: subscriptions are event emitters.
function verbsOfOldClients (client) {
  const subscriptions = new Map()
  return {
    async subscribe (command) {
      const { stream, partition = 0 } = command
      const subscription = client.subscribe({ stream, partition }, teller())
      subscription.on('error', tellError)
      subscriptions.set(keyOf(command), subscription)
      await once(subscription, 'subscribed')
      tell('subscribed', { stream, partition })
    },
    async unsubscribe (command) {
      const subscription = subscriptions.get(keyOf(command))
      const unsubscribed = once(subscription, 'unsubscribed')
      client.unsubscribe(subscription)
      await unsubscribed
      tell('unsubscribed', { stream: command.stream, partition: command.partition || 0 })
    },
    async resend ({ stream, partition = 0, resend }) {
      let count = 0
      const show = teller({ resent: true })
      const subscription = await client.resend({ stream, partition, resend }, (content, message) => {
        count += 1
        show(content, message)
      })
      subscription.on('error', tellError)
      await new Promise(resolve => {
        subscription.once('resent', resolve)
        subscription.once('no_resend', resolve)
      })
      tell('resent', { stream, partition, count })
    }
  }
}

// Version 5: everything is a promise.
function verbsOfNewClients (client) {
  const subscriptions = new Map()
  return {
    async subscribe (command) {
      const { stream, partition = 0 } = command
      const subscription = await client.subscribe({ streamId: stream, streamPartition: partition }, teller())
      subscription.on('error', tellError)
      subscriptions.set(keyOf(command), subscription)
      tell('subscribed', { stream, partition })
    },
    async unsubscribe (command) {
      await client.unsubscribe(subscriptions.get(keyOf(command)))
      tell('unsubscribed', { stream: command.stream, partition: command.partition || 0 })
    },
    async resend ({ stream, partition = 0, resend }) {
      let count = 0
      const show = teller({ resent: true })
      for await (const message of await client.resend({ streamId: stream, streamPartition: partition, resend })) {
        count += 1
        show(message.getContent(), message)
      }
      tell('resent', { stream, partition, count })
    },
    async rotate ({ stream }) {
      await client.rotateGroupKey(stream)
      tell('rotated', { stream })
    }
  }
}

async function main (version, url, restUrl, privateKey, options = '{}') {
  const StreamrClient = require(`streamr-client-${version}`)
  const client = new StreamrClient({
    url,
    restUrl,
    auth: privateKey ? { privateKey } : {},
    autoConnect: false,
    autoDisconnect: false,
    ...JSON.parse(options)
  })
  client.on('error', tellError)
  client.on('disconnected', () => tell('disconnected'))
  await client.connect()
  tell('ready')
  await obey({
    ...(version.startsWith('5') ? verbsOfNewClients(client) : verbsOfOldClients(client)),
    async publish ({ stream, content, key = null }) {
      await client.publish(stream, content, Date.now(), key)
      tell('published', { stream })
    },
    async quit () {
      await client.disconnect()
    }
  })
}

main(...process.argv.slice(2)).catch(error => {
  tellError(error)
  process.exit(1)
})
