'use strict'

// streamr-client 4 and 5 ask the native module node-webcrypto-ossl for what Node has had built in since
// version 15. Nothing native is compiled for the tests: a require of it gets Node's own webcrypto.
const Module = require('node:module')
const { webcrypto } = require('node:crypto')

class Crypto {
  constructor () {
    return webcrypto
  }
}

const load = Module._load
Module._load = function (request, ...rest) {
  return request === 'node-webcrypto-ossl' ? { Crypto } : load.call(this, request, ...rest)
}
