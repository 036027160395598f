// live(url, {view, state, renew}) streams a page, returns stop
const KEY = "streams_app_tab", on = addEventListener
let tab = Math.random().toString(36).slice(2) + Date.now().toString(36)
try {
	tab = sessionStorage.getItem(KEY) || tab
	on("pageshow", () => sessionStorage.removeItem(KEY))
	on("pagehide", () => sessionStorage.setItem(KEY, tab))
} catch {}

export function live(url, { view, state, renew } = {}) {
	const json = new URL(url, location), events = new URL(json)
	events.pathname += "/events"
	events.searchParams.set("tab", tab)
	let source, timer, broken, tries = 0, skew = 0, beat = 15e3, said
	const now = () => Date.now() + skew
	const say = (name, why) => said != (said = name + why) && state?.(name, why)
	const wait = (ms, then) => (clearTimeout(timer), timer = setTimeout(then, ms))
	const stop = () => { clearTimeout(timer); source?.close() }
	const later = () => wait(1e3 + Math.random() * Math.min(29e3, 1e3 * 2 ** tries++), open)
	const lost = () => { stop(); say("offline"); later() }

	async function ask() {
		stop()
		let status, again
		try {
			status = (await fetch(json, { credentials: "include" })).status
			if (status == 401 && renew) { await renew(); again = !tries++ }
		} catch {}
		if (end.signal.aborted) return
		say("offline", status)
		again ? open() : later()
	}

	function open() {
		stop()
		broken = 0
		source = new EventSource(events, { withCredentials: true })
		const hear = (name, then) => source.addEventListener(name, (e) => {
			tries = broken = 0
			const sent = JSON.parse(e.data)
			beat = sent.beat_ms || beat
			wait(2.5 * beat, lost)
			then(sent)
			say("live")
		})
		hear("beat", (sent) => { skew = sent.now_ms - Date.now() })
		hear("view", (sent) => view?.(sent, now))
		source.onerror = () => source.readyState > 1 ? ask() : broken ||= wait(6e3, lost)
		wait(2.5 * beat, lost)
	}

	const end = new AbortController()
	on("pagehide", stop, end)
	on("pageshow", (e) => e.persisted && open(), end)
	on("online", open, end)
	open()
	return () => { end.abort(); stop() }
}
