//! The committed header is the one that cbindgen makes of the Rust code.

use std::error::Error;
use std::fs;
use std::path::Path;
use std::process::Command;

/// Rewrites the header in place of comparing it; `make header` sets it.
const WRITE: &str = "VMIO_WRITE_HEADER";
/// Fields that were renamed, which programs may use by both names.
const RENAMED: &[(&str, &str)] = &[("minor_faults", "soft_misses")];

#[test]
fn the_header_is_what_the_code_says() -> Result<(), Box<dyn Error>> {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(package.join("cbindgen.toml"))?;
    let mut made = Vec::new();
    cbindgen::Builder::new().with_crate(package).with_config(config).generate()?.write(&mut made);
    let made = RENAMED.iter().fold(String::from_utf8(made)?, with_both_names);
    let path = package.join("include/vmio.h");
    if std::env::var_os(WRITE).is_some() {
        fs::write(&path, &made)?;
    }
    let committed = fs::read_to_string(&path)?;
    assert_eq!(committed, made, "run `make header` and look at what changes for programs");
    Ok(())
}

/// Has a field by its old name as well: an anonymous union, which cbindgen cannot write.
fn with_both_names(header: String, (name, old): &(&str, &str)) -> String {
    let field = format!("    uint64_t {name};\n");
    assert_eq!(header.matches(&field).count(), 1, "{name}");
    let union = format!(
        "    __extension__ union {{\n        uint64_t {name};\n        /*\n         The name of {name} up to ABI 0.5.\n         */\n        uint64_t {old};\n    }};\n"
    );
    header.replace(&field, &union)
}

#[test]
fn strict_c99_takes_the_header() -> Result<(), Box<dyn Error>> {
    let header = Path::new(env!("CARGO_MANIFEST_DIR")).join("include/vmio.h");
    let flags = ["-std=c99", "-pedantic-errors", "-Wall", "-Werror", "-fsyntax-only", "-x", "c"];
    assert!(Command::new("cc").args(flags).arg(header).status()?.success());
    Ok(())
}

#[test]
fn the_manual_page_names_every_function() -> Result<(), Box<dyn Error>> {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let header = fs::read_to_string(package.join("include/vmio.h"))?;
    let page = fs::read_to_string(package.join("man/vmio.3"))?;
    let functions = functions_of(&header);
    assert!(functions.len() > 25, "{functions:?}");
    for function in functions {
        assert!(page.contains(&format!("Fn {function}\n")) || page.contains(&format!("Fn {function} ,")), "{function}");
    }
    Ok(())
}

/// The functions that a header declares.
fn functions_of(header: &str) -> Vec<&str> {
    let declarations = header.split(';').filter_map(|declaration| declaration.rsplit("*/").next());
    let names = declarations.filter_map(|declaration| declaration.split_once('(').map(|(before, _)| before));
    names.filter_map(|before| before.rsplit([' ', '*']).next()).filter(|name| name.starts_with("vmio_")).collect()
}
