// The client of the gateway, trellis.js: node trellis.mjs MODULE WS_URL [OPTIONS as JSON]
// Commands: {"do": "subscribe" | "unsubscribe" | "publish" | "direct" | "history" | "presence" | "quit", …}
// Events: ready, state, subscribed, heard (with `kind` and `body`), published, sent, page, peers, unsubscribed, refused
import { pathToFileURL } from 'node:url'
import WebSocket from 'ws'
import lines from './lines.cjs'

const { tell, tellError, obey } = lines
const [, , module, url, options = '{}'] = process.argv
const { Trellis } = await import(pathToFileURL(module))
let ready = false

const trellis = new Trellis({
  url,
  WebSocket,
  ...JSON.parse(options),
  onstate (state, problem) {
    tell('state', { state, code: problem?.code, me: trellis.me })
    if (!ready) tell('ready', { me: trellis.me })
    ready = true
  }
})

const subscriptions = new Map()
const refuse = error => error.code ? tell('refused', { code: error.code, status: error.status, message: error.message }) : tellError(error)

await obey({
  async subscribe ({ where, after }) {
    const kinds = ['message', 'direct', 'joined', 'left', 'gap']
    const handlers = Object.fromEntries(kinds.map(kind => [kind, body => tell('heard', { kind, body })]))
    handlers.ended = error => tell('heard', { kind: 'ended', body: error.code })
    trellis.subscribe(where, handlers, { after }).then(subscription => {
      subscriptions.set(JSON.stringify(where), subscription)
      tell('subscribed', { sequence: subscription.sequence })
    }, refuse)
  },
  async unsubscribe ({ where }) {
    trellis.unsubscribe(subscriptions.get(JSON.stringify(where)))
    tell('unsubscribed')
  },
  async publish ({ channel, content, contents = [content] }) {
    for (const each of contents) trellis.publish(channel, each).then(receipt => tell('published', { receipt }), refuse)
  },
  async direct ({ channel, peer, content }) {
    trellis.direct(channel, peer, content).then(answer => tell('sent', answer), refuse)
  },
  async history ({ channel, range }) {
    trellis.history(channel, range).then(page => tell('page', page), refuse)
  },
  async presence ({ channel }) {
    trellis.presence(channel).then(peers => tell('peers', { peers }), refuse)
  },
  async quit () {
    trellis.close()
  }
})
