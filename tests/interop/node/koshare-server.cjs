'use strict'

// The reference topic-relay server: node koshare-server.cjs [PORT]
// Event: listening (with `port`). It runs until it is killed.
const { KoshareServer } = require('@yume-chan/koshare-router')
const { tell } = require('./lines.cjs')

KoshareServer.listen({ host: '127.0.0.1', port: Number(process.argv[2] || 0) }).then(server => {
  tell('listening', { port: server.socket.address().port })
})
