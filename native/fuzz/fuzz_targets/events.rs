//! Any bytes as an event: what `json.rs` accepts is JSON to another parser, with the same group key and the same changed names.
#![no_main]

use libfuzzer_sys::fuzz_target;
use serde::de::IgnoredAny;
use serde::Deserialize;
use serde_json::value::RawValue;
use std::collections::HashMap;
use streams_app_native::fuzzing::{fields, read, Mask};

#[derive(Deserialize)]
struct Event<'a> {
    id: String,
    #[serde(borrow)]
    m: &'a RawValue,
}

/// Returns the names in an object, an array or a text. Values are skipped: a number may be too large for a type of Rust.
fn names_of(changed: &str) -> serde_json::Result<Vec<String>> {
    match changed.as_bytes()[0] {
        b'{' => Ok(serde_json::from_str::<HashMap<String, IgnoredAny>>(changed)?.into_keys().collect()),
        b'[' => serde_json::from_str(changed),
        _ => Ok(vec![serde_json::from_str(changed)?]),
    }
}

fuzz_target!(|value: &[u8]| {
    let fields = fields();
    let Some((group, names)) = read(value, &fields) else { return };
    assert!(group.len() <= fields.key_bytes && value.len() <= fields.value_bytes);
    let event: Event = serde_json::from_slice(value).expect("JSON");
    assert_eq!(event.id.as_bytes(), group);
    let mut expected = Mask::default();
    for name in names_of(event.m.get()).expect("changed names") {
        expected.insert(fields.bits[name.as_bytes()]);
    }
    assert_eq!(expected, names);
});
