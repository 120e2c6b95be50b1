//! The files that `make install` installs, and C programs that are built against them.

use std::error::Error;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

/// The result of a test.
pub type TestResult = Result<(), Box<dyn Error>>;

const PREFIX: &str = "/opt/vmio";

/// The library, installed into a folder that stands for the root.
pub struct Installed {
    root: TempDir,
}

impl Installed {
    /// Runs `make install` with the library that this test was built with.
    pub fn new() -> Result<Self, Box<dyn Error>> {
        let root = tempfile::tempdir()?;
        let test = std::env::current_exe()?;
        let built = test.parent().ok_or("the test stands in no folder")?;
        let mut make = Command::new("make");
        make.args(["install", "PARTS=library", &format!("PREFIX={PREFIX}")]);
        make.arg(format!("DESTDIR={}", root.path().display())).arg(format!("BUILT={}", built.display()));
        make.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")).env_remove("MAKEFLAGS");
        succeeded(&mut make)?;
        Ok(Installed { root })
    }

    /// Where a file of the installation is.
    pub fn path(&self, below_prefix: &str) -> PathBuf {
        self.root.path().join(&PREFIX[1..]).join(below_prefix)
    }

    /// A folder for the files of a test.
    pub fn scratch(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    /// The answer of pkg-config about the library.
    pub fn pkg_config(&self, options: &[&str]) -> Result<Vec<String>, Box<dyn Error>> {
        let mut command = Command::new("pkg-config");
        command.args(options).arg("vmio").env("PKG_CONFIG_PATH", self.path("lib/pkgconfig"));
        let words = succeeded(command.env("PKG_CONFIG_SYSROOT_DIR", self.root.path()))?;
        Ok(words.split_whitespace().map(str::to_owned).collect())
    }

    /// Compiles a source without warnings, and links it with the shared library.
    pub fn compile(&self, compiler: &str, source: &Path, flags: &[&str]) -> Result<PathBuf, Box<dyn Error>> {
        let name = source.file_stem().and_then(OsStr::to_str).ok_or("a source without a name")?;
        let program = self.scratch(&format!("{name}-{compiler}"));
        let mut command = Command::new(compiler);
        command.args(["-Wall", "-Wextra", "-Werror", "-pedantic", "-g", "-O1", "-pthread"]).args(flags);
        command.arg("-o").arg(&program).arg(source).args(self.pkg_config(&["--cflags", "--libs"])?);
        succeeded(&mut command)?;
        Ok(program)
    }

    /// A command that runs a program beside the library.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command.env("LD_LIBRARY_PATH", self.path("lib"));
        command
    }
}

/// One of the examples.
pub fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(name)
}

/// A source that only tests use.
pub fn test_source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sources").join(name)
}

/// Which of some programs are installed; says which are not.
pub fn installed<'a>(programs: &[&'a str]) -> Vec<&'a str> {
    let found = |program: &&str| Command::new(program).arg("--version").output().is_ok();
    let (there, missing): (Vec<_>, Vec<_>) = programs.iter().copied().partition(found);
    missing.iter().for_each(|program| test_depth::skipped(format_args!("{program} is not installed")));
    there
}

/// The output of a command that succeeds.
pub fn succeeded(command: &mut Command) -> Result<String, Box<dyn Error>> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    if !output.status.success() {
        return Err(format!("{command:?}: {}\n{}", output.status, both(&output)).into());
    }
    Ok(String::from_utf8(output.stdout)?)
}

fn both(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// Writes a text of this many lines, of 64 bytes and 7 words each.
pub fn write_text(path: &Path, lines: usize) -> TestResult {
    let line = format!("{:x<63}\n", "seven words make up a line ");
    Ok(fs::write(path, line.repeat(lines))?)
}
