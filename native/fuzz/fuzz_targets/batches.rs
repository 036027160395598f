//! Any bytes as a record batch: parsing, reading and aggregating neither panic nor allocate more than a few times their size.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u64, [u8; 61], &[u8])| {
    let (seed, mut header, body) = input;
    header[16] = 2; // all other formats are refused at once
    streams_app_native::fuzzing::read_batch(seed, &header, body);
});
