'use strict'

// Commands come as JSON lines on stdin, what a client is told goes out as JSON lines on stdout.
const readline = require('node:readline')

function tell (event, fields = {}) {
  process.stdout.write(JSON.stringify({ event, ...fields }) + '\n')
}

function tellError (error) {
  tell('error', { message: String((error && error.message) || error), code: error && error.code })
}

// Runs one command after the other; `verbs` maps the `do` of a command to an async function of it.
// The end of stdin is the command quit.
async function obey (verbs) {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const command = JSON.parse(line)
    try {
      await verbs[command.do](command)
    } catch (error) {
      tellError(error)
    }
    if (command.do === 'quit') break
  }
  process.exit(0)
}

module.exports = { tell, tellError, obey }
