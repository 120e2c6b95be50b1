//! The binary has the probes of docs/design/probes.md, in the form for tracers.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::fs;

use crate::common::TestResult;
use object::{File, Object, ObjectSection};

const NOP: u8 = 0x90;
/// The lengths of the name and of the description, and the type.
const NOTE_HEAD: usize = 12;

struct Probe {
    /// Its address at link time.
    address: u64,
    arguments: usize,
}

fn word(bytes: &[u8], at: usize) -> usize {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes")) as usize
}

/// All places of the probes of the provider `vmio`.
fn probes(file: &File<'_>) -> Result<Vec<(String, Probe)>, Box<dyn Error>> {
    let section = file.section_by_name(".note.stapsdt").ok_or("no section .note.stapsdt")?;
    let mut notes = section.data()?;
    let mut probes = Vec::new();
    while notes.len() > NOTE_HEAD {
        let (name_len, len, kind) = (word(notes, 0), word(notes, 4), word(notes, 8));
        let start = NOTE_HEAD + name_len.next_multiple_of(4);
        assert_eq!((&notes[NOTE_HEAD..NOTE_HEAD + name_len], kind), (&b"stapsdt\0"[..], 3));
        // The addresses of the probe, of the section .stapsdt.base and of a semaphore; then texts.
        let description = &notes[start..start + len];
        let address = u64::from_le_bytes(description[..8].try_into()?);
        assert_eq!(description[16..24], [0; 8], "a semaphore");
        let texts: Vec<_> = description[24..].split(|byte| *byte == 0).map(String::from_utf8_lossy).collect();
        if texts[0] == "vmio" {
            let arguments = texts[2].split_whitespace().count();
            probes.push((texts[1].to_string(), Probe { address, arguments }));
        }
        notes = &notes[(start + len.next_multiple_of(4)).min(notes.len())..];
    }
    Ok(probes)
}

/// The names and numbers of arguments in the table of the document.
fn documented() -> BTreeMap<String, usize> {
    let document = include_str!("../../../docs/design/probes.md");
    let rows = document.lines().filter_map(|line| line.strip_prefix("| `"));
    let cells = rows.map(|row| row.split('|').collect::<Vec<_>>());
    let arguments = |cell: &str| cell.split(',').filter(|argument| !argument.trim().is_empty()).count();
    cells.map(|cells| (cells[0].trim().trim_end_matches('`').to_owned(), arguments(cells[1]))).collect()
}

#[test]
fn the_binary_has_the_probes_of_the_document() -> TestResult {
    let bytes = fs::read(env!("CARGO_BIN_EXE_vmio"))?;
    let file = File::parse(&*bytes)?;
    let found = probes(&file)?;
    let by_name: BTreeMap<_, _> = found.iter().map(|(name, probe)| (name.clone(), probe.arguments)).collect();
    assert_eq!(by_name, documented());
    for (name, probe) in &found {
        assert_eq!(probe.arguments, by_name[name], "{name} has as many arguments everywhere");
    }
    Ok(())
}

#[test]
fn a_probe_that_nobody_uses_is_a_nop() -> TestResult {
    let bytes = fs::read(env!("CARGO_BIN_EXE_vmio"))?;
    let file = File::parse(&*bytes)?;
    let text = file.section_by_name(".text").ok_or("no section .text")?;
    let mut alive = BTreeSet::new();
    for (name, probe) in probes(&file)? {
        // If the linker has left out a copy of a function, its note stays, with an address near zero.
        let Some(at) = probe.address.checked_sub(text.address()) else { continue };
        assert_eq!(text.data()?.get(at as usize), Some(&NOP), "{name} at {:#x}", probe.address);
        alive.insert(name);
    }
    assert!(alive.iter().eq(documented().keys()), "{alive:?}");
    Ok(())
}
