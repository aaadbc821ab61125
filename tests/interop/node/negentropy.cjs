'use strict'

// The side that begins, by the library nostr-tools. Commands: `begin` with `items`, pairs of a time (ms) and an id in hex,
// and a `limit` of bytes; `answer` with a `message` in hex. Each tells the next message (null at the end), and what has
// been found until then.
const { nip77 } = require('nostr-tools')
const { tell, obey } = require('./lines.cjs')

let side
const have = []
const need = []

obey({
  begin: async ({ items, limit }) => {
    const storage = new nip77.NegentropyStorageVector()
    for (const [time, id] of items) storage.insert(time, id)
    storage.seal()
    side = new nip77.Negentropy(storage, limit)
    have.length = need.length = 0
    tell('next', { message: side.initiate(), have, need })
  },
  answer: async ({ message }) => {
    tell('next', { message: side.reconcile(message, (id) => have.push(id), (id) => need.push(id)), have, need })
  },
  quit: async () => {}
})
tell('ready')
