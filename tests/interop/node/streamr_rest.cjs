'use strict'

// The REST side of a genuine Streamr client: node streamr_rest.cjs VERSION REST_URL AUTH
// VERSION is 2.2.7, 3.2.1, 4.1.6 or 5.1.0; AUTH is a JSON object of the client's `auth` option.
// Commands: {"do": "call", "method", "args"} on the client; {"do": "stream", "id", "method", "args", "set"} on a
// stream that the client gets first, with the fields of `set` put into it; {"do": "quit"}
// Events: ready, result (with `value`), error
require('./webcrypto.cjs')
const { tell, obey } = require('./lines.cjs')

console.log = console.info = console.warn = console.error = () => {}

// Streams as plain objects: what begins with an underscore is the client's own.
function plain (value) {
  if (Array.isArray(value)) return value.map(plain)
  if (value && typeof value.toObject === 'function') return value.toObject()
  return value === undefined ? null : value
}

async function main (version, restUrl, auth) {
  const StreamrClient = require(`streamr-client-${version}`)
  const client = new StreamrClient({ restUrl, auth: JSON.parse(auth), autoConnect: false, autoDisconnect: false })
  client.on('error', () => {})
  tell('ready')
  await obey({
    async call ({ method, args = [] }) {
      tell('result', { value: plain(await client[method](...args)) })
    },
    async stream ({ id, method, args = [], set = {} }) {
      const stream = await client.getStream(id)
      Object.assign(stream, set)
      tell('result', { value: plain(await stream[method](...args)) })
    },
    async quit () {}
  })
}

main(...process.argv.slice(2)).catch(error => {
  tell('error', { message: String(error) })
  process.exit(1)
})
