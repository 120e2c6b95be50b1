//! `vmio top`: one frame as text, and the dashboard on a terminal.

use std::error::Error;
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::process::Child;

use crate::common::cat::Cat;
use crate::common::{TestResult, refused, succeeded, vmio};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags, open};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

const ENTER: &str = "\x1b[?1049h";
/// A word of the dashboard's second frame. The terminal does not draw blanks over blanks.
const DRAWN: &str = "latency";
const LEAVE: &str = "\x1b[?1049l";

#[test]
fn one_frame_is_printed_as_text() -> TestResult {
    let mut cat = Cat::start()?;
    let frame = succeeded(vmio().args(["top", &cat.id(), "--once", "--interval", "0.1"]))?;
    for part in
        [&format!("process {}, cache 1", cat.id()), "misses/s", "miss latency", "resident", "under way", "by priority"]
    {
        assert!(frame.contains(part), "no {part:?} in\n{frame}");
    }
    assert!(!frame.contains('\x1b'), "{frame}");
    // All pages that it has read have the default priority.
    let mut lines = frame.lines().skip_while(|line| !line.contains("by priority"));
    let (names, amounts) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
    let end = names.find("128-159").ok_or("no such priorities")? + "128-159".len();
    let amount: String = amounts.chars().take(names[..end].chars().count()).collect();
    assert!(amount.ends_with("iB") && amounts.matches("iB").count() == 1, "{frame}");
    // The dashboard of all processes shows it, too.
    let all = succeeded(vmio().args(["top", "--once", "--interval", "0.1"]))?;
    assert!(all.contains("cache") && all.contains("misses/s"), "{all}");
    cat.finish()
}

#[test]
fn what_cannot_be_watched_is_refused_with_a_reason() -> TestResult {
    refused(vmio().args(["top", "4194305", "--once"]), "there is no process 4194305")?;
    refused(vmio().args(["top", &std::process::id().to_string(), "--once"]), "does not use vmio")?;
    refused(vmio().args(["top", "--interval", "0"]), "seconds")?;
    let cat = Cat::start()?;
    refused(vmio().args(["top", &cat.id()]), "--once")
}

/// A `vmio top` on a terminal.
struct Top {
    child: Child,
    /// Our end of the terminal.
    keys: File,
    screen: String,
    terminal: OwnedFd,
}

impl Top {
    fn start(process_id: &str) -> Result<Self, Box<dyn Error>> {
        let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY)?;
        grantpt(&ours)?;
        unlockpt(&ours)?;
        tcsetwinsize(&ours, Winsize { ws_row: 40, ws_col: 120, ws_xpixel: 0, ws_ypixel: 0 })?;
        let name = ptsname(&ours, Vec::new())?;
        let terminal = open(name.as_c_str(), OFlags::RDWR | OFlags::NOCTTY, Mode::empty())?;
        let mut command = vmio();
        command.args(["top", process_id, "--interval", "0.1"]).env("TERM", "xterm-256color");
        let child = command.stdin(terminal.try_clone()?).stdout(terminal.try_clone()?).stderr(terminal.try_clone()?);
        let child = child.spawn()?;
        Ok(Self { child, keys: File::from(ours), screen: String::new(), terminal })
    }

    /// Reads its output until a text has come.
    fn wait_for(&mut self, text: &str) -> TestResult {
        while !self.screen.contains(text) {
            // The terminal stays open as long as this process does: without a limit the wait could last for ever.
            let limit = Timespec { tv_sec: 60, tv_nsec: 0 };
            if poll(&mut [PollFd::new(&self.keys, PollFlags::IN)], Some(&limit))? == 0 {
                return Err(format!("{text:?} did not come: {:?}", self.screen).into());
            }
            let mut bytes = vec![0; 64 << 10];
            match self.keys.read(&mut bytes) {
                Ok(0) => return Err(format!("{text:?} did not come: {:?}", self.screen).into()),
                Ok(read) => self.screen.push_str(&String::from_utf8_lossy(&bytes[..read])),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Checks that the terminal is as it was before.
    fn assert_given_back(&mut self) -> TestResult {
        self.wait_for(LEAVE)?;
        let modes = tcgetattr(&self.terminal)?.local_modes;
        assert!(modes.contains(LocalModes::ECHO | LocalModes::ICANON | LocalModes::ISIG), "{modes:?}");
        Ok(())
    }
}

impl Drop for Top {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn the_dashboard_takes_keys_and_gives_the_terminal_back() -> TestResult {
    let mut cat = Cat::start()?;
    let mut top = Top::start(&cat.id())?;
    top.wait_for(ENTER)?;
    top.wait_for(DRAWN)?;
    let modes = tcgetattr(&top.terminal)?.local_modes;
    assert!(!modes.contains(LocalModes::ECHO), "keys would show on the dashboard");
    top.keys.write_all(b"p")?;
    top.wait_for("paused")?;
    top.keys.write_all(b"q")?;
    assert!(top.child.wait()?.success());
    top.assert_given_back()?;
    cat.finish()
}

#[test]
fn the_end_of_the_process_ends_the_dashboard_and_is_said() -> TestResult {
    let mut cat = Cat::start()?;
    let mut top = Top::start(&cat.id())?;
    top.wait_for(DRAWN)?;
    cat.finish()?;
    assert!(top.child.wait()?.success());
    top.assert_given_back()?;
    top.wait_for(&format!("process {} (vmio) has ended", cat.id()))
}

#[test]
fn signals_give_the_terminal_back() -> TestResult {
    let mut cat = Cat::start()?;
    for signal in [Signal::TERM, Signal::INT] {
        let mut top = Top::start(&cat.id())?;
        top.wait_for(DRAWN)?;
        kill_process(Pid::from_child(&top.child), signal)?;
        assert!(!top.child.wait()?.success());
        top.assert_given_back()?;
    }
    cat.finish()
}
