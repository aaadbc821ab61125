'use strict'

// What the genuine libraries make of frames: node decode.cjs, with a JSON array of {frame, control, message} (the
// text, and the versions that were negotiated) on stdin. Answers with a JSON array of {library, frame, kind, type} for
// every frame and every library that knows both versions; frames of the tracker are {frame, tracker}, with its version.
// There is a `fault` where a library cannot read the frame, reads something else than it says, or does not believe its
// signature.
const { isDeepStrictEqual } = require('node:util')
const { verifyMessage } = require('ethers').utils // version 4

// Where each library is, and which versions of messages it knows; control version 2 is unknown to the first.
const LIBRARIES = {
  '2.2.15': ['streamr-client-2.2.7/node_modules/streamr-client-protocol', [30, 31]],
  '5.3.3': ['streamr-client-4.1.6/node_modules/streamr-client-protocol', [30, 31, 32]],
  '8.4.1': ['streamr-client-protocol', [30, 31, 32]]
}
// What only the first of them knows: a new key in the content, and group keys in objects, where the others have arrays.
const NEW_KEY_AND_AES = 3
const GROUP_KEYS = { 28: 'GroupKeyRequest', 29: 'GroupKeyResponse', 30: 'GroupKeyAnnounce', 31: 'GroupKeyErrorResponse' }

// What the gateway signs for readers of version 31 is for the clients before 4.0, which count UTF-16 units, as the
// ethers of their time does; what a publisher signed is as it was signed.
const OLD = 31
const BRIDGED = 'topic_relay'
const verifyAsOld = async (address, payload, signature) =>
  verifyMessage(payload, signature).toLowerCase() === address.toLowerCase()

// The libraries that know a version of the tracker protocol.
const TRACKERS = { 1: '5.3.3', 2: '8.4.1' }

function readTracker (library, { frame, tracker }) {
  const decoded = library.TrackerLayer.TrackerMessage.deserialize(frame)
  const parsed = JSON.parse(frame) // an error has a reason behind what the library knows
  const again = JSON.parse(decoded.serialize(tracker))
  if (!isDeepStrictEqual(again, parsed.slice(0, again.length))) throw new Error(`written again: ${again}`)
  return { kind: decoded.constructor.name, type: null }
}

function knows (version, messages, { frame, control, message, tracker }) {
  if (tracker) return TRACKERS[tracker] === version
  const old = version === '2.2.15'
  if (!messages.includes(message) || (old && control === 2)) return false
  let parsed
  try { parsed = JSON.parse(frame) } catch (_) { return true }
  const row = parsed[parsed.length - 1]
  if (!Array.isArray(row) || !Array.isArray(row[1])) return true
  if (row[0] === 31 && row[4] === NEW_KEY_AND_AES) return old
  const content = row[{ 30: 4, 31: 5, 32: 7 }[row[0]]]
  return !GROUP_KEYS[row[3]] || content.startsWith('{') === old
}

async function read (library, version, { frame, control, message }) {
  const decoded = library.ControlLayer.ControlMessage.deserialize(frame)
  const inner = decoded.streamMessage || (decoded.payload && decoded.payload.messageId ? decoded.payload : null)
  const found = { kind: decoded.constructor.name.replace(/V1$/, ''), type: inner ? inner.messageType ?? inner.contentType : null }
  const again = JSON.parse(decoded.serialize(control, message))
  if (!isDeepStrictEqual(again, JSON.parse(frame))) throw new Error(`written again: ${JSON.stringify(again)}`)
  if (inner) {
    if (inner.getParsedContent() === undefined) throw new Error('no content')
    const named = GROUP_KEYS[inner.messageType]
    if (named && version !== '2.2.15') library.MessageLayer[named].fromStreamMessage(inner)
    if (inner.signature && version !== '2.2.15' && inner.signatureType === 2) {
      const { StreamMessageValidator, SigningUtil } = library.Utils
      const check = StreamMessageValidator.assertSignatureIsValid || StreamMessageValidator._assertSignatureIsValid
      const isOld = message === OLD && inner.messageId.msgChainId === BRIDGED
      await check(inner, isOld ? verifyAsOld : (address, payload, signature) => SigningUtil.verify(address, payload, signature))
    }
  }
  return found
}

async function main () {
  let text = ''
  for await (const chunk of process.stdin) text += chunk
  const answers = []
  for (const [version, [path, messages]] of Object.entries(LIBRARIES)) {
    const library = require(path)
    for (const sample of JSON.parse(text)) {
      if (!knows(version, messages, sample)) continue
      const answer = { library: version, frame: sample.frame }
      try {
        Object.assign(answer, sample.tracker ? readTracker(library, sample) : await read(library, version, sample))
      } catch (error) {
        answer.fault = String((error && error.message) || error)
      }
      answers.push(answer)
    }
  }
  process.stdout.write(JSON.stringify(answers))
}

main()
