/**
 * A client of Trellis for web pages and Node: one WebSocket, `/v1/ws`, for everything, and no dependency.
 *
 *     import { Trellis } from "./trellis.js";
 *     const trellis = new Trellis();
 *     await trellis.subscribe("lobby", { message: ({ sender, content }) => console.log(sender.name, content) });
 *     await trellis.publish("lobby", "hello");
 *
 * A lost connection is opened again, after pauses that grow. Each subscription then continues after the last message
 * that it got, so none is missing and none comes twice. Requests that were not answered are sent again: a message has an
 * idempotency key, so it is published once. Only `direct` fails then, because nobody knows whether it was delivered.
 *
 * @typedef {{number: number, protocol: string, identity: string | null, name: string | null}} Peer
 * @typedef {{peer: number, protocol: string, identity: string | null, name: string | null}} Sender
 * @typedef {{id: string, sequence: number, channel: string, timestamp: number, sender: Sender, content: any,
 *   inReplyTo: string | null, native: Record<string, unknown>, undelivered: string[], pattern?: string}} Message
 *   `pattern` is the pattern by which it was heard, if it was; a direct message has no `sequence`
 * @typedef {{id: string, channel: string, sequence: number, timestamp: number, undelivered: string[]}} Receipt
 * @typedef {{after: number, before: number}} Gap the messages between two sequences, which are no longer kept
 * @typedef {{message?: (message: Message) => void, direct?: (message: Message) => void, joined?: (peer: Peer) => void,
 *   left?: (peer: Peer) => void, gap?: (gap: Gap) => void, ended?: (problem: Refused) => void}} Handlers
 *   `ended`: the gateway refuses to continue. Patterns have no `direct`, `joined` and `left`.
 * @typedef {{channel?: string, pattern?: string, handlers: Handlers, sequence: number | null,
 *   settle: (error: Refused | null) => void}} Subscription
 *   `sequence` is that of the last message it got; another subscription can continue there
 * @typedef {{url?: string | URL, key?: string | null, timeout?: number, WebSocket?: any,
 *   onstate?: (state: "open" | "waiting" | "closed", problem?: Refused) => void}} Options
 *   `url` of `/v1/ws`, by default that of the gateway from which this module was loaded; an API key; the seconds after
 *   which a request, or a silent connection, has failed (60); the class of WebSockets where there is no global one, as in
 *   Node 20 (that of the package `ws`); what hears of the connection, `closed` with a problem if it is refused for good
 */

const FIRST_PAUSE_MS = 250; // before the second attempt to connect; doubled after each failure
const MAX_PAUSE_MS = 15_000;
const STABLE_MS = 5_000; // after a connection that lasted so long, the pauses begin again
const MAX_BYTES = 1 << 20; // of a request; the gateway closes the connection after a longer one
const MAX_PENDING = 1_000; // requests without an answer
const MAX_PEERS = 1_000_000; // of a channel; more says no gateway
const MAX_WAIT = 3600; // seconds that a gateway may ask to wait; timers have a limit as well
const FINAL = ["unknown-key", "foreign-origin"]; // refusals that another attempt to connect does not change

/** A refusal with a stable `code` (the gateway lists all at `/problems`). Status 0: this client failed, or gave up. */
export class Refused extends Error {
  /** @param {{code: string, status: number, detail: string, retryAfter?: number}} problem */
  constructor({ code, status, detail, retryAfter }) {
    super(detail);
    this.code = code;
    this.status = status;
    this.retryAfter = retryAfter && Math.min(retryAfter, MAX_WAIT); // seconds
  }
}

/** @param {string} code @param {string} detail */
const failure = (code, detail) => new Refused({ code, status: 0, detail });

/** @param {{channel?: string, pattern?: string}} where */
const nameOf = ({ channel, pattern }) => (pattern === undefined ? `channel ${channel}` : `pattern ${pattern}`);

/** The message in a text; null if it is none that a gateway writes. @param {string} data */
const read = (data) => {
  try {
    const message = JSON.parse(data);
    const { type, peers, problem } = message;
    const fits = typeof type === "string" && (type !== "presence" || Array.isArray(peers)) && (type !== "error" || problem?.code);
    return fits ? message : null;
  } catch {
    return null;
  }
};

/** A connection to a gateway, which is kept until `close`. */
export class Trellis {
  /** Who you are to the gateway; null while there is no connection. @type {Peer | null} */
  me = null;
  #url;
  #options;
  /** @type {Map<string, Subscription>} */ #subscriptions = new Map();
  /** @type {Map<number, {text: string, once: boolean, sent: boolean, peers: Peer[],
   *   settle: (error: Refused | null, answer?: any) => void}>} */
  #pending = new Map();
  /** @type {any} */ #socket;
  /** @type {any} */ #timer;
  #closed = false;
  #requests = 0;
  #failures = 0; // to connect, since a connection was stable
  #opened = 0; // when the connection was opened, in milliseconds
  #silence = 0; // thirds of the timeout in which nothing was heard

  /** @param {Options} [options] */
  constructor({ url = new URL("../v1/ws", import.meta.url), ...options } = {}) {
    this.#url = new URL(url);
    this.#url.protocol = this.#url.protocol.replace("http", "ws");
    this.#options = { key: null, timeout: 60, WebSocket: globalThis.WebSocket, onstate: () => {}, ...options };
    if (!this.#options.WebSocket) throw failure("no-websocket", "there is no WebSocket here; before Node 22, give the option WebSocket");
    this.#connect();
  }

  /**
   * Listen to a channel, or to `{pattern: "news/*"}`, from now on or after a sequence; resolves once the gateway agrees.
   *
   * @param {string | {pattern: string}} where @param {Handlers} handlers @param {{after?: number | null}} [options]
   * @returns {Promise<Subscription>}
   */
  async subscribe(where, handlers, { after = null } = {}) {
    const place = typeof where === "string" ? { channel: where } : { pattern: where.pattern };
    if (this.#closed) throw failure("closed", "the connection is closed");
    if (this.#subscriptions.has(nameOf(place))) throw failure("subscribed", `there is one to the ${nameOf(place)} already`);
    return new Promise((resolve, reject) => {
      let begun = false;
      const settle = (/** @type {Refused | null} */ error) => {
        if (error === null) resolve(added);
        else if (begun) handlers.ended?.(error);
        else reject(error);
        begun = true;
      };
      /** @type {Subscription} */
      const added = { ...place, handlers, sequence: after, settle };
      this.#subscriptions.set(nameOf(place), added);
      if (this.me) this.#listen(added);
    });
  }

  /** Listen no more. @param {Subscription} subscription */
  unsubscribe(subscription) {
    const { channel, pattern } = subscription;
    if (this.#subscriptions.get(nameOf(subscription)) !== subscription) return;
    this.#subscriptions.delete(nameOf(subscription));
    if (this.me) this.#ask("unsubscribe", { channel, pattern }, true).catch(() => {});
  }

  /** Publish a JSON value; resolves once it is on disk. @param {string} channel @param {any} content @returns {Promise<Receipt>} */
  publish(channel, content) {
    const random = crypto.getRandomValues(new Uint32Array(4)); // `randomUUID` is missing without TLS
    return this.#ask("publish", { channel, content, idempotencyKey: random.join("-") });
  }

  /** Send a JSON value to one peer in a channel. @param {string} channel @param {number} peer @param {any} content @returns {Promise<{id: string}>} */
  direct(channel, peer, content) {
    return this.#ask("direct", { channel, peer, content }, true);
  }

  /**
   * Read a page of history, at most 32 messages; `next` is the sequence where the next one begins, null at the end.
   *
   * @param {string} channel @param {{after?: number, before?: number, limit?: number, newestFirst?: boolean}} [range]
   * @returns {Promise<{messages: Message[], next: number | null}>}
   */
  history(channel, range = {}) {
    return this.#ask("history", { channel, ...range });
  }

  /** Tell who is in a channel. @param {string} channel @returns {Promise<Peer[]>} */
  presence(channel) {
    return this.#ask("presence", { channel });
  }

  /** End the connection, and fail what is under way. @param {Refused} [problem] */
  close(problem) {
    if (this.#closed) return;
    this.#closed = true;
    this.#drop();
    const error = problem ?? failure("closed", "the connection is closed");
    for (const asked of [...this.#pending.values(), ...this.#subscriptions.values()]) asked.settle(error);
    this.#subscriptions.clear();
    this.#options.onstate("closed", problem);
  }

  #connect() {
    const { key, timeout, WebSocket } = this.#options;
    const url = new URL(this.#url);
    if (key) url.searchParams.set("key", key);
    const socket = (this.#socket = new WebSocket(url.href));
    socket.onmessage = (/** @type {{data: string}} */ { data }) => {
      this.#silence = 0;
      const message = read(data);
      if (message === null) this.#reconnect();
      else this.#receive(message);
    };
    socket.onerror = () => {}; // `onclose` follows
    socket.onclose = () => this.#reconnect();
    this.#silence = 0;
    this.#timer = setInterval(() => this.#check(), (timeout * 1000) / 3);
  }

  #check() {
    if (++this.#silence > 2) this.#reconnect();
    else if (this.#silence === 2 && this.me) this.#socket.send('{"type":"ping"}');
  }

  #drop() {
    clearInterval(this.#timer);
    this.#socket.onmessage = this.#socket.onclose = null;
    this.#socket.close();
    this.me = null;
  }

  #reconnect() {
    const refused = this.me === null;
    if (!refused && Date.now() - this.#opened > STABLE_MS) this.#failures = 0;
    this.#drop();
    for (const asked of [...this.#pending.values()]) {
      if (asked.once && asked.sent) asked.settle(failure("connection-lost", "the connection was lost before the answer"));
    }
    const pause = Math.min(FIRST_PAUSE_MS * 2 ** this.#failures++, MAX_PAUSE_MS) * (0.5 + Math.random() / 2);
    this.#timer = setTimeout(async () => {
      const problem = refused ? await this.#refusal() : null;
      if (problem) this.close(problem);
      else if (!this.#closed) this.#connect();
    }, pause);
    this.#options.onstate("waiting");
  }

  /** Why the gateway refuses a WebSocket for good, which only HTTP tells. @returns {Promise<Refused | null>} */
  async #refusal() {
    const { key } = this.#options;
    const headers = key ? { Authorization: `Bearer ${key}` } : undefined;
    try {
      const url = new URL("channels?limit=1", this.#url.href.replace(/^ws/, "http"));
      const problem = await (await fetch(url, { headers, cache: "no-store", signal: AbortSignal.timeout(this.#options.timeout * 1000) })).json();
      return FINAL.includes(problem.code) ? new Refused(problem) : null;
    } catch {
      return null; // there is no answer, or none that this page may read
    }
  }

  /** @param {any} message */
  #receive({ type, request, ...body }) {
    const asked = this.#pending.get(request);
    if (type === "welcome") this.#begin(body);
    else if (type === "error") this.#refuse(request, new Refused(body.problem));
    else if (type === "presence") {
      if (asked === undefined) return;
      asked.peers = asked.peers.concat(body.peers);
      if (asked.peers.length > MAX_PEERS) asked.settle(failure("too-many-peers", "the answer has no end"));
      else if (!body.more) asked.settle(null, asked.peers);
    } else if (request !== undefined) asked?.settle(null, body);
    else {
      const subscription = this.#subscriptions.get(nameOf(body));
      if (subscription === undefined) return;
      if (type === "message") subscription.sequence = body.sequence;
      if (type === "gap") subscription.sequence = body.before - 1;
      subscription.handlers[/** @type {keyof Handlers} */ (type)]?.(body);
    }
  }

  /** @param {any} welcome */
  #begin({ version: _version, ...me }) {
    this.me = me;
    this.#opened = Date.now();
    const waiting = [...this.#pending.keys()];
    for (const subscription of this.#subscriptions.values()) this.#listen(subscription);
    for (const request of waiting) this.#send(request);
    this.#options.onstate("open");
  }

  /** @param {number} request @param {Refused} error */
  #refuse(request, error) {
    const asked = this.#pending.get(request);
    const socket = this.#socket;
    if (asked?.once || !error.retryAfter) asked?.settle(error);
    else setTimeout(() => socket === this.#socket && this.me && this.#send(request), error.retryAfter * 1000);
  }

  /** @param {Subscription} subscription */
  async #listen(subscription) {
    const { channel, pattern, sequence } = subscription;
    const socket = this.#socket;
    const wanted = () => this.#subscriptions.get(nameOf(subscription)) === subscription && socket === this.#socket && this.me;
    try {
      const answer = await this.#ask("subscribe", { channel, pattern, after: sequence }, true);
      subscription.sequence ??= answer.sequence;
      subscription.settle(null);
    } catch (error) {
      const problem = /** @type {Refused} */ (error);
      if (!wanted()) return; // if the connection was lost, the next one begins with it
      if (problem.retryAfter) setTimeout(() => wanted() && this.#listen(subscription), problem.retryAfter * 1000);
      else {
        this.#subscriptions.delete(nameOf(subscription));
        subscription.settle(problem);
      }
    }
  }

  /**
   * Send a request, now or once there is a connection; one that is to be sent *once* fails if that connection is lost.
   *
   * @param {string} type @param {object} fields @returns {Promise<any>}
   */
  async #ask(type, fields, once = false) {
    const request = ++this.#requests;
    const text = JSON.stringify({ type, request, ...fields });
    const { timeout } = this.#options;
    if (this.#closed) throw failure("closed", "the connection is closed");
    if (this.#pending.size >= MAX_PENDING) throw failure("too-many-requests", "too many requests wait for an answer");
    if (new TextEncoder().encode(text).length > MAX_BYTES) throw failure("content-too-long", `a request has at most ${MAX_BYTES} bytes`);
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => settle(failure("timeout", `no answer for ${timeout} seconds`)), timeout * 1000);
      const settle = (/** @type {Refused | null} */ error, /** @type {any} */ answer = null) => {
        clearTimeout(timer);
        this.#pending.delete(request);
        return error ? reject(error) : resolve(answer);
      };
      this.#pending.set(request, { text, once, sent: false, peers: [], settle });
      if (this.me) this.#send(request);
    });
  }

  /** @param {number} request */
  #send(request) {
    const asked = this.#pending.get(request);
    if (asked === undefined) return;
    asked.sent = true;
    asked.peers = [];
    this.#socket.send(asked.text);
  }
}
