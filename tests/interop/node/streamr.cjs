'use strict'

// Genuine Streamr clients, as many as are asked for, in one process: node streamr.cjs
// Every command and every event names its `client`; commands to one client are done one after the other.
// {"do": "open", "version", "url", "restUrl", "key", "options"}: VERSION is 2.2.7, 3.2.1, 4.1.6 or 5.1.0; an empty key
// is a client without login; options are the client's, such as {"verifySignatures": "always"}.
// {"do": "subscribe" | "unsubscribe", "stream", "partition"}, {"do": "publish", "stream", "content", "key"},
// {"do": "resend", "stream", "partition", "resend": {"last": 2}}, {"do": "rotate", "stream"} (5.1.0), {"do": "me"},
// {"do": "create", "id"}, {"do": "close"}; to nobody: {"do": "quit"}
// Events: ready, subscribed, message, unsubscribed, published, resent (with `count`; after the messages of the
// resend, which have `resent`), rotated, me, created, closed, disconnected, error
require('./webcrypto.cjs')
const readline = require('node:readline')
const { once } = require('node:events')

const quiet = () => {}
// The clients log to stdout and stderr on their own; stdout is ours.
console.log = console.info = console.warn = console.error = quiet

function teller (client) {
  const tell = (event, fields = {}) => process.stdout.write(JSON.stringify({ client, event, ...fields }) + '\n')
  tell.error = error => tell('error', { message: String((error && error.message) || error), code: error && error.code })
  tell.message = extra => (content, message) => {
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
  return tell
}

const keyOf = ({ stream, partition = 0 }) => JSON.stringify([stream, partition])

// Versions before 5: subscriptions are event emitters.
function verbsOfOldClients (client, tell) {
  const subscriptions = new Map()
  return {
    async subscribe (command) {
      const { stream, partition = 0 } = command
      const subscription = client.subscribe({ stream, partition }, tell.message())
      subscription.on('error', tell.error)
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
      const show = tell.message({ resent: true })
      const subscription = await client.resend({ stream, partition, resend }, (content, message) => {
        count += 1
        show(content, message)
      })
      subscription.on('error', tell.error)
      await new Promise(resolve => {
        subscription.once('resent', resolve)
        subscription.once('no_resend', resolve)
      })
      tell('resent', { stream, partition, count })
    }
  }
}

// Version 5: everything is a promise.
function verbsOfNewClients (client, tell) {
  const subscriptions = new Map()
  return {
    async subscribe (command) {
      const { stream, partition = 0 } = command
      const subscription = await client.subscribe({ streamId: stream, streamPartition: partition }, tell.message())
      subscription.on('error', tell.error)
      subscriptions.set(keyOf(command), subscription)
      tell('subscribed', { stream, partition })
    },
    async unsubscribe (command) {
      await client.unsubscribe(subscriptions.get(keyOf(command)))
      tell('unsubscribed', { stream: command.stream, partition: command.partition || 0 })
    },
    async resend ({ stream, partition = 0, resend }) {
      let count = 0
      const show = tell.message({ resent: true })
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

async function open (tell, { version, url, restUrl, key, options = {} }) {
  const StreamrClient = require(`streamr-client-${version}`)
  const client = new StreamrClient({
    url,
    restUrl,
    auth: key ? { privateKey: key } : {},
    autoConnect: false,
    autoDisconnect: false,
    ...options
  })
  client.on('error', tell.error)
  client.on('disconnected', () => tell('disconnected'))
  await client.connect()
  tell('ready')
  return {
    ...(version.startsWith('5') ? verbsOfNewClients : verbsOfOldClients)(client, tell),
    async publish ({ stream, content, key = null }) {
      await client.publish(stream, content, Date.now(), key)
      tell('published', { stream })
    },
    async me () {
      tell('me', { user: await client.getUserInfo() })
    },
    async create ({ id }) {
      const stream = await client.getOrCreateStream({ id, name: id })
      tell('created', { id: stream.id })
    },
    async close () {
      await client.disconnect()
      tell('closed')
    }
  }
}

async function main () {
  const clients = new Map() // by name: what it can do, and what it does now
  process.on('unhandledRejection', teller(null).error)
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const command = JSON.parse(line)
    if (command.do === 'quit') break
    const name = command.client
    const tell = teller(name)
    const client = clients.get(name) || { verbs: {}, busy: Promise.resolve() }
    clients.set(name, client)
    client.busy = client.busy.then(async () => {
      if (command.do === 'open') client.verbs = await open(tell, command)
      else await client.verbs[command.do](command)
    }).catch(tell.error)
  }
  process.exit(0)
}

main()
