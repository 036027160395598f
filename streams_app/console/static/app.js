// What moves in the console. Without this file every page works, with times in UTC.
const zoned = new Intl.DateTimeFormat(undefined, {
  year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23",
})
const parts = (at) => Object.fromEntries(zoned.formatToParts(at).map(({ type, value }) => [type, value]))

const localTimes = (root) => {
  for (const time of root.querySelectorAll("time[datetime]")) {
    const { year, month, day, hour, minute, second } = parts(new Date(time.dateTime))
    const text = `${year}-${month}-${day} ${hour}:${minute}:${second}`
    if (time.textContent !== text) time.textContent = text
    time.title = `${time.dateTime} UTC`
  }
}

const two = (large, unit, small, other) => small ? `${large} ${unit} ${small} ${other}` : `${large} ${unit}`
const span = (ms) => {
  const seconds = Math.floor(ms / 1000)
  if (seconds < 60) return `${(ms / 1000).toFixed(1)} s`
  if (seconds < 3600) return two(Math.floor(seconds / 60), "min", seconds % 60, "s")
  if (seconds < 172800) return two(Math.floor(seconds / 3600), "h", Math.floor(seconds % 3600 / 60), "min")
  return two(Math.floor(seconds / 86400), "d", Math.floor(seconds % 86400 / 3600), "h")
}

// The clock of the server, so that a wrong clock of this machine does not matter.
let aheadMs = 0
const countDown = () => {
  const now = Date.now() + aheadMs
  for (const one of document.querySelectorAll("[data-until]")) {
    const left = Number(one.dataset.until) - now
    one.textContent = left > 0 ? span(left) : "now"
  }
}

const refresh = () => {
  const main = document.querySelector("#main")
  const now = main.querySelector("[data-now]")
  if (now) aheadMs = Number(now.dataset.now) - Date.now()
  localTimes(main)
  countDown()
}

const connection = document.querySelector("#connection")
const say = (text, isLost) => {
  if (!connection) return
  connection.hidden = false
  connection.textContent = text
  connection.classList.toggle("lost", isLost)
}
document.addEventListener("htmx:sse:after:connection", () => say("● live", false))
document.addEventListener("htmx:sse:after:message", () => { say("● live", false); refresh() })
document.addEventListener("htmx:sse:error", () => say("■ not connected, trying again", true))
document.addEventListener("htmx:sse:close", () => say("○ not live: load the page again", true))
document.addEventListener("htmx:after:swap", refresh)
document.addEventListener("DOMContentLoaded", refresh)
document.addEventListener("visibilitychange", () => { if (!document.hidden) refresh() })
setInterval(countDown, 100)
