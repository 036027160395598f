// live(url, {view, state, renew}) follows a page of live views, and returns what closes it.
const BEAT = 15e3, KEY = "streams_app_tab", on = addEventListener
let tab = Math.random().toString(36).slice(2) + Date.now().toString(36)
try { // a reload keeps its id, a duplicate finds none
	const store = sessionStorage
	tab = store.getItem(KEY) || tab
	on("pageshow", () => store.removeItem(KEY))
	on("pagehide", () => store.setItem(KEY, tab))
} catch {}

export function live(url, { view, state, renew } = {}) {
	const json = new URL(url, location), events = new URL(json)
	events.pathname += "/events"
	events.searchParams.set("tab", tab)
	let source, timer, tries = 0, skew = 0, said
	const now = () => Date.now() + skew
	const say = (name, why) => said != (said = name + why) && state?.(name, why)
	const wait = (ms, then) => { clearTimeout(timer); timer = setTimeout(then, ms) }
	const stop = () => { clearTimeout(timer); source?.close() }
	const later = () => wait(1e3 + Math.random() * Math.min(29e3, 1e3 * 2 ** tries++), open)
	const lost = () => { stop(); say("offline"); later() }

	async function ask() {
		stop()
		let status, isNow
		try {
			status = (await fetch(json, { credentials: "include" })).status
			if (status == 401 && renew) { await renew(); isNow = !tries++ }
		} catch {}
		if (end.signal.aborted) return
		say("offline", status)
		isNow ? open() : later()
	}

	function open() {
		stop()
		source = new EventSource(events, { withCredentials: true })
		const hear = (name, then) => source.addEventListener(name, (e) => {
			tries = 0
			wait(2.5 * BEAT, lost)
			then(JSON.parse(e.data))
			say("live")
		})
		hear("beat", (beat) => { skew = beat.now_ms - Date.now() })
		hear("view", (message) => view?.(message, now))
		source.onerror = () => source.readyState > 1 ? ask() : wait(6e3, lost)
		wait(2.5 * BEAT, lost)
	}

	const end = new AbortController()
	on("pagehide", stop, end)
	on("pageshow", (e) => e.persisted && open(), end)
	on("online", open, end)
	open()
	return () => { end.abort(); stop() }
}
