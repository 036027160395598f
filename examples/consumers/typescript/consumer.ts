// Consumes folded records: drops a fold-id that it has seen, and keeps the newest version of each group.
import { Kafka, logLevel } from "kafkajs"

const [bootstrap, topic, group] = process.argv.slice(2)
const consumer = new Kafka({ brokers: bootstrap.split(","), logLevel: logLevel.ERROR }).consumer({ groupId: group })
const seen = new Set<string>(), versions = new Map<string, number>() // in production: in your database, written with the result

await consumer.connect()
await consumer.subscribe({ topic, fromBeginning: true })
await consumer.run({
  eachMessage: async ({ message }) => {
    if (!message.key || !message.value) return // not a folded record
    const key = message.key.toString(), id = String(message.headers?.["fold-id"])
    const { fold } = JSON.parse(message.value.toString()) as { fold: { version: number } }
    if (!seen.has(id) && fold.version > (versions.get(key) ?? -1)) {
      console.log(`process ${key} ${id}`)
      versions.set(key, fold.version)
    }
    seen.add(id)
  },
})
