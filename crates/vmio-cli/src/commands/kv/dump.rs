//! `vmio kv dump`: a volume's structures and their places.

use std::io::{self, Write};
use std::path::Path;

use anyhow::bail;
use clap::ValueEnum;
use serde_json::{Map, Value};
use vmio_kv::{Event, Field, Found, Options, Structure};

use super::steps::Steps;

/// The structures to print.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Part {
    /// The volume's header, its segments and their superblocks
    Superblock,
    /// Allocation units that are taken, and their purposes
    Units,
    /// Keyspaces, with the roots of their levels
    #[value(alias = "regions")]
    Keyspaces,
    /// Nodes of all trees
    Tree,
    /// Chunks of the log and their records
    Log,
}

impl Part {
    fn structure(self) -> Structure {
        match self {
            Part::Superblock => Structure::Superblock,
            Part::Units => Structure::Units,
            Part::Keyspaces => Structure::Keyspaces,
            Part::Tree => Structure::Tree,
            Part::Log => Structure::Log,
        }
    }
}

/// Prints all structures of a part, one a line.
pub fn dump(output: &mut impl Write, path: &Path, memory_bytes: u64, part: Part, json: bool) -> anyhow::Result<()> {
    let steps = Steps::start();
    let mut written = Ok(());
    let options = Options::new().memory_bytes(memory_bytes);
    let report = vmio_kv::dump(path, &options, part.structure(), |event| match &event {
        Event::Found(found) if written.is_ok() => written = write_found(output, found, json),
        _ => steps.show(&event),
    })?;
    drop(steps);
    written?;
    output.flush()?;
    if let Some(first) = report.problems.first() {
        bail!("{} is damaged: {first} (`vmio kv check` prints all problems)", report.volume);
    }
    Ok(())
}

fn write_found(output: &mut impl Write, found: &Found, json: bool) -> io::Result<()> {
    if json {
        let mut object = Map::new();
        object.insert("what".to_owned(), found.what.into());
        object.insert("offset".to_owned(), found.offset.into());
        for (name, field) in &found.fields {
            let value = match field {
                Field::Number(number) => (*number).into(),
                other => text(other).into(),
            };
            match object.get_mut(*name) {
                // A keyspace has several trees.
                Some(Value::Array(all)) => all.push(value),
                Some(one) => *one = Value::Array(vec![one.take(), value]),
                None => drop(object.insert((*name).to_owned(), value)),
            }
        }
        return writeln!(output, "{}", Value::Object(object));
    }
    write!(output, "{:>14}  {}", found.offset, found.what)?;
    for (name, field) in &found.fields {
        write!(output, "  {name}={}", text(field))?;
    }
    writeln!(output)
}

fn text(field: &Field) -> String {
    match field {
        Field::Number(number) => number.to_string(),
        Field::Text(text) => text.to_string(),
        Field::Bytes(bytes) => bytes.escape_ascii().to_string(),
        _ => String::new(),
    }
}
