//! Whatever a file of a trace holds, in each format: an error at worst, never a panic, and what is whole is read.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;

#[allow(dead_code)]
#[path = "../../crates/vmio-cli/src/sim/formats.rs"]
mod formats;

#[derive(Arbitrary, Debug)]
struct Input {
    numbers: Vec<u64>,
    raw: Vec<u8>,
}

/// What is read, up to a first million.
fn read(parse: impl Fn(&[u8], &mut dyn FnMut(u64)) -> anyhow::Result<()>, bytes: &[u8]) -> Option<Vec<u64>> {
    let mut touched = Vec::new();
    let parsed = parse(bytes, &mut |page| {
        if touched.len() < 1 << 20 {
            touched.push(page);
        }
    });
    // Every error can be told.
    parsed.map_err(|error| drop(format!("{error:#}"))).ok().map(|()| touched)
}

fuzz_target!(|input: Input| {
    let Input { numbers, raw } = input;
    read(|bytes, touch| formats::pages(bytes, touch), &raw);
    read(|bytes, touch| formats::msr(bytes, touch), &raw);
    let objects = read(|bytes, touch| formats::oracle_general(bytes, touch), &raw);
    assert_eq!(objects.map(|objects| objects.len()), raw.len().is_multiple_of(24).then_some(raw.len() / 24));

    let lines: String = numbers.iter().map(|number| format!("{number},load\n")).collect();
    assert_eq!(read(|bytes, touch| formats::pages(bytes, touch), lines.as_bytes()).as_ref(), Some(&numbers));
    let records: Vec<u8> =
        numbers.iter().flat_map(|number| [&[1; 4][..], &number.to_le_bytes(), &[2; 12]].concat()).collect();
    assert_eq!(read(|bytes, touch| formats::oracle_general(bytes, touch), &records).as_ref(), Some(&numbers));
});
