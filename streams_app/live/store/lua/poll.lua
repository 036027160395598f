#!lua flags=allow-oom,no-writes
-- What pages of a view hold now, as far as a hub does not know it.
--
-- KEYS      of the shard, see keys.py
-- known     text: the token under which the versions were read; "" = none was
-- wanted    array: pages
-- versions  array: of each page the version that is known, "" where it held nothing
-- show      number: newest items that are returned of each page
--
-- A version counts under its token alone. Under another token all that hold anything are returned: the others hold nothing.
--
-- Returns {"ok", token, seq, fence, clock, reading, whole_ms, partitions, and of each page that differs its place among the wanted ones
--         from 0 on, version, number of items, array of item and time newest first, array of payloads} or {"none"} where there is no state.
-- Cost    O(pages wanted + items returned): about 1 us each.
-- include view.lua

if not (state.fence and state.seq and state.clock) then return {'none'} end
read_marks('reading', 'whole_ms', 'partitions')
local wanted, versions = arg.wanted, arg.versions
local is_known = state.token == arg.known
local reply = {'ok', state.token, state.seq, state.fence, state.clock, state.reading or '', state.whole_ms or '0', state.partitions or '0'}
for from = 1, #wanted, CHUNK do
  local to = math.min(from + CHUNK - 1, #wanted)
  for i, found in ipairs(call('HMGET', pages, unpack(wanted, from, to))) do
    local place = from + i - 1
    local version = found or ''
    if version ~= (is_known and versions[place] or '') then
      local items, names, payloads = {}, {}, {}
      if arg.show > 0 then items = call('ZRANGE', items_of .. wanted[place], 0, arg.show - 1, 'REV', 'WITHSCORES') end
      for k = 1, #items, 2 do names[#names + 1] = items[k] end
      if #names > 0 then payloads = call('HMGET', data_of .. wanted[place], unpack(names)) end
      for _, value in ipairs({place - 1, version, call('ZCARD', items_of .. wanted[place]), items, payloads}) do
        reply[#reply + 1] = value
      end
    end
  end
end
return reply
