// What moves in the console. Without this file every page works, with times in UTC and charts that do not answer the pointer.
const zoned = new Intl.DateTimeFormat(undefined, {
  year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23",
})
const localText = (at) => {
  const { year, month, day, hour, minute, second } = Object.fromEntries(zoned.formatToParts(at).map(({ type, value }) => [type, value]))
  return `${year}-${month}-${day} ${hour}:${minute}:${second}`
}

const localTimes = (root) => {
  for (const time of root.querySelectorAll("time[datetime]")) {
    const at = new Date(time.dateTime)
    const text = localText(at) + ("exact" in time.dataset ? `.${String(at.getMilliseconds()).padStart(3, "0")}` : "")
    if (time.textContent !== text) time.textContent = text
    time.title = time.dateTime
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

// By the clock of the server, so that a wrong clock of this machine does not matter.
let aheadMs = 0
const countDown = () => {
  const now = Date.now() + aheadMs
  for (const one of document.querySelectorAll("[data-until]")) {
    const left = Number(one.dataset.until) - now
    const text = left > 0 ? span(left) : "now"
    if (one.textContent !== text) one.textContent = text
  }
}

// Charts: drawn by the server, and again by uPlot, which shows the value under the pointer.
const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim()
const number = (value) => value >= 10 || value === Math.round(value) ? Math.round(value).toLocaleString("en") : value.toPrecision(2)
const bytes = (value) => {
  const power = value >= 1e9 ? 3 : value >= 1e6 ? 2 : value >= 1e3 ? 1 : 0
  return `${number(value / 1000 ** power)} ${["B", "kB", "MB", "GB"][power]}`
}
const units = {
  bytes,
  share: (value) => `${(100 * value).toFixed(1)}%`,
  seconds: (value) => !value ? "0 s" : value < 0.1 ? `${(value * 1000).toFixed(1)} ms` : span(value * 1000),
}
const shown = (value, unit) => value == null ? "" : units[unit]?.(value) ?? `${number(value)}${unit.endsWith("/s") ? " /s" : ""}`

const pointer = (unit) => {
  const tip = document.createElement("span")
  tip.className = "tip"
  tip.hidden = true
  return {
    hooks: {
      init: (plot) => plot.over.append(tip),
      setCursor: (plot) => {
        const at = plot.cursor.idx
        const value = at == null ? null : plot.data[1][at]
        tip.hidden = value == null
        if (value == null) return
        tip.textContent = `${shown(value, unit)} at ${localText(new Date(plot.data[0][at] * 1000)).slice(11)}`
        const half = tip.offsetWidth / 2
        tip.style.left = `${Math.min(Math.max(plot.cursor.left, half), plot.over.clientWidth - half)}px`
        tip.style.top = `${Math.max(plot.valToPos(value, "y"), 24)}px`
      },
    },
  }
}

const plots = new Map()
const dataOf = (box) => {
  const from = Number(box.dataset.from) / 1000, step = Number(box.dataset.step) / 1000
  const values = box.dataset.points.split(",").map((text) => text === "" ? null : Number(text))
  return [values.map((_, at) => from + at * step), values]
}
const whole = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9].flatMap((power) => [1, 2, 5].map((one) => one * 10 ** power))
const draw = (box) => {
  const { unit } = box.dataset
  const axis = { stroke: color("--soft"), grid: { stroke: color("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui", gap: 4 }
  const isCount = !units[unit] && !unit.endsWith("/s")  // there is no half group
  const short = (value) => units[unit]?.(value).replace(".0%", "%") ?? number(value)
  const plot = new uPlot({
    width: box.clientWidth, height: box.clientHeight, legend: { show: false },
    padding: [6, 16, 0, 0],  // on the right there is room for half of the last time of the axis
    cursor: { y: false, drag: { x: false, y: false }, points: { size: 7, fill: color("--accent") } },
    scales: { y: { range: (_, __, most) => [0, unit === "share" ? 1 : most > 0 ? most * 1.1 : 1] } },
    series: [{}, { stroke: color("--accent"), fill: `${color("--accent")}1a`, width: 1.5, spanGaps: false, points: { show: false } }],
    axes: [
      { ...axis, grid: { show: false }, size: 22, space: 70, values: (_, ticks) => ticks.map((at) => localText(new Date(at * 1000)).slice(11, 16)) },
      { ...axis, size: 46, space: 34, incrs: isCount ? whole : undefined, values: (_, ticks) => ticks.map(short) },
    ],
    plugins: [pointer(unit)],
  }, dataOf(box), box)
  plot.root.setAttribute("data-keep", "")
  box.classList.add("drawn")
  plots.set(box.id, { plot, box })
}
const drawAll = (again) => {
  if (!window.uPlot) return
  for (const [id, { plot, box }] of plots) {
    if (again || !box.isConnected || !box.contains(plot.root)) { plot.destroy(); plots.delete(id) }
  }
  for (const box of document.querySelectorAll("[data-plot]")) {
    if (plots.has(box.id)) { plots.get(box.id).plot.setData(dataOf(box)); box.classList.add("drawn") } else draw(box)
  }
}
let resizing
addEventListener("resize", () => { clearTimeout(resizing); resizing = setTimeout(() => drawAll(true), 150) })
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawAll(true))

const refresh = () => {
  const main = document.querySelector("#main")
  const now = main.querySelector("[data-now]")
  if (now) aheadMs = Number(now.dataset.now) - Date.now()
  localTimes(main)
  countDown()
  drawAll(false)
}

const connection = document.querySelector("#connection")
const say = (text, isLost) => {
  if (!connection) return
  connection.hidden = false
  if (connection.textContent !== text) connection.textContent = text
  connection.classList.toggle("lost", isLost)
}
document.addEventListener("htmx:sse:after:connection", () => say("● live", false))
document.addEventListener("htmx:sse:after:message", () => { say("● live", false); refresh() })
document.addEventListener("htmx:sse:error", () => say("■ not connected, trying again", true))
document.addEventListener("htmx:sse:close", () => say("○ not live: load the page again", true))
const isField = (one) => one.isContentEditable || /^(input|textarea|select)$/i.test(one.tagName)
document.addEventListener("keydown", (event) => {
  const isShort = event.key === "/" && !event.ctrlKey && !event.metaKey && !event.altKey && !isField(event.target)
  if (!isShort && !((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k")) return
  event.preventDefault()
  document.querySelector("#search").focus()
  document.querySelector("#search").select()
})
document.addEventListener("DOMContentLoaded", refresh)
setInterval(countDown, 100)
