//! Runs, as benchmarks write them: objects of JSON, found by what they say.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;

/// The runs in a file.
pub fn read(path: &Path) -> Result<Vec<Value>> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("{} has no array of runs", path.display()))
}

/// A file's name without its folder and its last ending.
pub fn stem(path: &Path) -> &str {
    path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default()
}

/// Has a run say something more of itself.
pub fn note(run: &mut Value, key: &str, value: &str) {
    if let Some(run) = run.as_object_mut() {
        run.insert(key.to_owned(), value.into());
    }
}

/// Some runs of all.
pub type Runs<'a> = Vec<&'a Value>;

/// Those that say all of this.
pub fn select<'a>(runs: &[&'a Value], said: &[(&str, Value)]) -> Runs<'a> {
    runs.iter().copied().filter(|run| says(run, said)).collect()
}

/// Whether a run says all of this; nothing is what is not said.
pub fn says(run: &Value, said: &[(&str, Value)]) -> bool {
    said.iter().all(|(key, value)| run[*key] == *value)
}

/// The different values of a key, in the order of the runs.
pub fn distinct(runs: &[&Value], key: &str) -> Vec<Value> {
    let mut values: Vec<Value> = Vec::new();
    for run in runs {
        if !values.contains(&run[key]) {
            values.push(run[key].clone());
        }
    }
    values
}

/// A number, where there is one.
pub fn of(run: &Value, key: &str) -> Option<f64> {
    run[key].as_f64()
}

/// A count; none is 0.
pub fn count(run: &Value, key: &str) -> u64 {
    run[key].as_u64().unwrap_or_default()
}

/// A text; none is empty.
pub fn text<'a>(run: &'a Value, key: &str) -> &'a str {
    run[key].as_str().unwrap_or_default()
}

/// The name of a key in a list of keys and names, or the key.
pub fn name_in<'a>(names: &[(&str, &'a str)], key: &'a str) -> &'a str {
    names.iter().find(|(known, _)| *known == key).map_or(key, |(_, name)| name)
}

/// The place of a key in such a list; behind all, if it is not there.
pub fn place_in(names: &[(&str, &str)], key: &str) -> usize {
    names.iter().position(|(known, _)| *known == key).unwrap_or(names.len())
}
