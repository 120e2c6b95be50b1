//! The installed library, as the linker and the loader see it.

use std::process::Command;

use crate::support::{Installed, TestResult, example, succeeded};

/// The symbols that an object defines for others.
fn symbols(nm: &mut Command) -> Result<Vec<String>, Box<dyn std::error::Error>> {
    let lines = succeeded(nm)?;
    Ok(lines.lines().filter_map(|line| line.split_whitespace().nth(2)).map(str::to_owned).collect())
}

#[test]
fn nothing_but_the_functions_of_the_header_is_exported() -> TestResult {
    let library = Installed::new()?;
    let shared = symbols(Command::new("nm").args(["-D", "--defined-only"]).arg(library.path("lib/libvmio.so")))?;
    let archive = symbols(Command::new("nm").args(["-g", "--defined-only"]).arg(library.path("lib/libvmio.a")))?;
    for (symbols, what) in [(&shared, "libvmio.so"), (&archive, "libvmio.a")] {
        let foreign: Vec<_> = symbols.iter().filter(|name| !name.starts_with("vmio_")).collect();
        assert!(foreign.is_empty(), "{what} exports {foreign:?}");
        assert!(symbols.iter().any(|name| name == "vmio_open"), "{what}: {symbols:?}");
    }
    let sorted = |mut names: Vec<String>| {
        names.sort();
        names
    };
    assert_eq!(sorted(shared), sorted(archive));
    Ok(())
}

#[test]
fn programs_ask_for_the_major_version_of_the_interface() -> TestResult {
    let library = Installed::new()?;
    let header = succeeded(Command::new("readelf").arg("-d").arg(library.path("lib/libvmio.so")))?;
    assert!(header.contains("Library soname: [libvmio.so.0]"), "{header}");
    assert!(library.path("lib/libvmio.so.0").exists(), "what the name stands for is missing");
    assert_eq!(library.pkg_config(&["--modversion"])?, [env!("CARGO_PKG_VERSION")]);
    Ok(())
}

#[test]
fn programs_link_with_the_archive() -> TestResult {
    let library = Installed::new()?;
    let program = library.scratch("log_append-static");
    let mut compiler = Command::new("cc");
    compiler.args(["-std=c11", "-o"]).arg(&program).arg(example("log_append.c"));
    compiler.args(library.pkg_config(&["--cflags"])?).arg(library.path("lib/libvmio.a"));
    // The needs of the archive itself: all that pkg-config adds but the library.
    let needed = library.pkg_config(&["--static", "--libs"])?;
    succeeded(compiler.args(needed.iter().filter(|word| *word != "-lvmio")))?;
    let log = library.scratch("log");
    assert_eq!(succeeded(Command::new(&program).arg(&log).arg("10"))?, "found 0, appended 10\n");
    Ok(())
}
