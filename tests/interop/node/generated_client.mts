// A program on openapi-fetch, with the types that openapi-typescript makes of /openapi.json: publish, history, events.
import createClient from "openapi-fetch"
import type { paths } from "./schema.js"

declare const process: { argv: string[] }

const client = createClient<paths>({ baseUrl: process.argv[2]! })
const path = { channel: "lobby" }

const published = await client.POST("/v1/channels/{channel}/messages", { params: { path }, body: { text: "hello" } })
if (typeof published.data !== "object") throw new Error("only lines are answered with a text")
const id: string = published.data.id

const history = await client.GET("/v1/channels/{channel}/messages", { params: { path, query: { limit: 10 } } })
const [message] = history.data!.messages
const next: string | null = history.data!.next

const refused = await client.GET("/v1/channels/{channel}/messages/{id}", { params: { path: { ...path, id: "none" } } })
const code = refused.error!.code  // one of those that the document lists

const ending = new AbortController()
const listening = { params: { path, query: { after: 0 } }, parseAs: "stream", signal: ending.signal } as const
const { data } = await client.GET("/v1/channels/{channel}/events", listening)
const reader = data!.pipeThrough(new TextDecoderStream()).getReader()
let heard = ""
while (!heard.includes(id)) heard += (await reader.read()).value ?? ""
ending.abort()

const isKnown = code === "unknown-message"
console.log(JSON.stringify({ id, found: message?.id, content: message?.content, next, isKnown, heard }))
