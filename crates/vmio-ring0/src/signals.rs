//! Signals of threads in the machine: the monitor blocks them, and the program's handlers run outside, with the program's registers.

use std::ptr;

use crate::raw;

const BYTES: u64 = size_of::<Signals>() as u64;
/// From here on signals are queued: any number of each may wait.
const FIRST_QUEUED: i32 = 32;

/// The C library's own, whom pthread_sigmask(3) does not block.
const CANCEL: i32 = 32;
const SET_USER: i32 = 33;
const SET_USER_OF_MUSL: i32 = 34;

/// A set of signals, as the kernel has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Signals(pub(crate) u64);

impl Signals {
    /// The monitor blocks all, so that no handler finds its locks held or its stack in use.
    pub(crate) const OF_MONITOR: Signals = Signals::all().without(libc::SIGKILL).without(libc::SIGSTOP);
    /// Blocked outside while the program's fault handler is in the middle of its work: all but those that its own instructions cause.
    pub(crate) const OF_HANDLER: Signals = Signals::all()
        .without(libc::SIGSEGV)
        .without(libc::SIGBUS)
        .without(libc::SIGILL)
        .without(libc::SIGFPE)
        .without(libc::SIGTRAP);
    /// Blocked while a program's thread defers signals: these but the ones by which the C library has all threads change their user, and ends threads.
    pub(crate) const OF_DEFERRAL: Signals = Signals::OF_HANDLER
        .without(CANCEL)
        .without(SET_USER)
        .without(SET_USER_OF_MUSL)
        .without(libc::SIGKILL)
        .without(libc::SIGSTOP);

    const fn all() -> Signals {
        Signals(u64::MAX)
    }

    pub(crate) const fn of(signal: i32) -> Signals {
        Signals(1 << (signal - 1))
    }

    /// These but for one.
    pub(crate) const fn without(self, signal: i32) -> Signals {
        Signals(self.0 & !Signals::of(signal).0)
    }

    pub(crate) fn contains(self, signal: i32) -> bool {
        self.0 & Signals::of(signal).0 != 0
    }

    fn and_not(self, others: Signals) -> Signals {
        Signals(self.0 & !others.0)
    }

    fn each(self) -> impl Iterator<Item = i32> {
        (1..=64).filter(move |signal| self.contains(*signal))
    }

    /// The program's mask after rt_sigprocmask(2); `None` if there is no such way to change it.
    pub(crate) fn changed(self, how: u64, set: Signals) -> Option<Signals> {
        let changed = match how as i32 {
            libc::SIG_BLOCK => self.0 | set.0,
            libc::SIG_UNBLOCK => self.0 & !set.0,
            libc::SIG_SETMASK => set.0,
            _ => return None,
        };
        // The kernel lets nobody block these.
        Some(Signals(changed).without(libc::SIGKILL).without(libc::SIGSTOP).of_program())
    }

    /// Those of them that a program blocks: a thread that touches managed memory outside enters by SIGSEGV.
    pub(crate) fn of_program(self) -> Signals {
        self.without(libc::SIGSEGV)
    }
}

/// Blocks the calling thread's signals as the monitor does, and returns those that were blocked.
pub(crate) fn block() -> Signals {
    set(Signals::OF_MONITOR)
}

/// Blocks these signals of the calling thread and no others; returns those that were blocked.
pub(crate) fn set(blocked: Signals) -> Signals {
    let mut before = Signals::default();
    let (new, old) = (&raw const blocked as u64, &raw mut before as u64);
    // SAFETY: the kernel reads the one set and writes the other, which live meanwhile.
    unsafe { raw::call(libc::SYS_rt_sigprocmask as u64, [libc::SIG_SETMASK as u64, new, old, BYTES, 0, 0]) };
    before
}

/// Runs a body with the calling thread's signals blocked: a handler could wait for what the body holds.
pub(crate) fn blocked<T>(body: impl FnOnce() -> T) -> T {
    let before = block();
    let result = body();
    set(before);
    result
}

/// Takes one of these signals that waits for the calling thread or its process, if one does.
fn take(which: Signals) -> Option<libc::siginfo_t> {
    let no_time = [0_u64; 2];
    // SAFETY: a structure of numbers, of which the kernel fills a part.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let arguments = [&raw const which as u64, &raw mut info as u64, &raw const no_time as u64, BYTES, 0, 0];
    // SAFETY: the kernel reads the set and the time, and writes the structure.
    let taken = unsafe { raw::call(libc::SYS_rt_sigtimedwait as u64, arguments) };
    raw::error_of(taken).is_none().then_some(info)
}

/// Sends the calling thread a signal that was taken.
fn give_back(mut info: libc::siginfo_t) {
    let send = |info: &libc::siginfo_t| {
        // SAFETY: the kernel reads the structure. A process may send itself what looks like a signal of anybody.
        unsafe {
            let process = raw::call(libc::SYS_getpid as u64, [0; 6]);
            let thread = raw::call(libc::SYS_gettid as u64, [0; 6]);
            let arguments = [process, thread, info.si_signo as u64, ptr::from_ref(info) as u64, 0, 0];
            raw::call(libc::SYS_rt_tgsigqueueinfo as u64, arguments)
        }
    };
    if raw::error_of(send(&info)).is_some() {
        // So many wait that the kernel has no memory for what this one says.
        info.si_code = libc::SI_USER;
        send(&info);
    }
}

/// Takes a SIGBUS that waits for the calling thread if it is for a touch of bad memory: the touch, made again outside, is another one.
pub(crate) fn take_bad_memory() -> bool {
    let Some(info) = take(Signals::of(libc::SIGBUS)) else { return false };
    let is_of_touch = info.si_code == libc::BUS_MCEERR_AR;
    if !is_of_touch {
        give_back(info);
    }
    is_of_touch
}

/// Whether a signal waits whose handler the calling thread runs once it is outside, with these signals blocked. No other thread takes it before. Signals
/// that are ignored, or that stop the process, take effect here: no handler would bring the thread back into the machine.
pub(crate) fn must_be_taken(blocked: Signals) -> bool {
    let mut must = false;
    for signal in pending().and_not(blocked).each() {
        match effect_of(signal) {
            Effect::None => _ = take(Signals::of(signal)),
            Effect::Stop => {
                // Nothing of the program's runs on this stack: the kernel stops the process.
                set(Signals::OF_MONITOR.without(signal));
                block();
            }
            Effect::Handler if claim(signal) => {
                come_back_after(signal);
                must = true;
            }
            Effect::Handler => {}
        }
    }
    must
}

/// Makes a signal that waits the calling thread's; false if another one was faster. One of the process waits for all of its threads.
fn claim(signal: i32) -> bool {
    // Of these any number waits, in order.
    if signal >= FIRST_QUEUED && waits_for_thread(signal) {
        return true;
    }
    let taken = take(Signals::of(signal));
    taken.map(give_back).is_some()
}

/// The signals that wait for the calling thread or its process.
fn pending() -> Signals {
    let mut pending = Signals::default();
    // SAFETY: the kernel writes the set.
    unsafe { raw::call(libc::SYS_rt_sigpending as u64, [&raw mut pending as u64, BYTES, 0, 0, 0, 0]) };
    pending
}

/// Whether this signal waits for the calling thread or its process.
pub(crate) fn is_waiting(signal: i32) -> bool {
    pending().contains(signal)
}

/// Whether one waits that is not among these.
pub(crate) fn wait_but(blocked: Signals) -> bool {
    pending().and_not(blocked) != Signals::default()
}

/// Whether a signal waits for the calling thread itself, which the kernel says in a file alone.
fn waits_for_thread(signal: i32) -> bool {
    const FIELD: &[u8] = b"\nSigPnd:\t";
    let mut text = [0_u8; 4096];
    // SAFETY: the kernel reads the path, and writes as many bytes as there is room for. The descriptor is this function's.
    let len = unsafe {
        let path = c"/proc/thread-self/status".as_ptr() as u64;
        let flags = (libc::O_RDONLY | libc::O_CLOEXEC) as u64;
        let file = raw::call(libc::SYS_open as u64, [path, flags, 0, 0, 0, 0]);
        if raw::error_of(file).is_some() {
            return true;
        }
        let len = raw::call(libc::SYS_read as u64, [file, text.as_mut_ptr() as u64, text.len() as u64, 0, 0, 0]);
        raw::call(libc::SYS_close as u64, [file, 0, 0, 0, 0, 0]);
        if raw::error_of(len).is_some() { 0 } else { len as usize }
    };
    let text = &text[..len.min(text.len())];
    let Some(at) = text.windows(FIELD.len()).position(|part| part == FIELD) else { return true };
    let digits = text[at + FIELD.len()..].iter().map_while(|digit| char::from(*digit).to_digit(16));
    let waits = digits.fold(0, |set, digit| set << 4 | u64::from(digit));
    Signals(waits).contains(signal)
}

/// The effect of a signal on the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Effect {
    None,
    Stop,
    /// A handler runs, or the process ends.
    Handler,
}

fn effect_of(signal: i32) -> Effect {
    match (raw::handler_of(signal) as usize, signal) {
        (libc::SIG_IGN, _) => Effect::None,
        (libc::SIG_DFL, libc::SIGCHLD | libc::SIGURG | libc::SIGWINCH | libc::SIGCONT) => Effect::None,
        (libc::SIG_DFL, libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU) => Effect::Stop,
        _ => Effect::Handler,
    }
}

/// An action as the kernel has it.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Action {
    handler: u64,
    flags: u64,
    restorer: u64,
    mask: Signals,
}

impl Action {
    /// The action whose handler returns by [`crate::restore`].
    pub(crate) fn coming_back(self) -> Action {
        if matches!(self.handler as usize, libc::SIG_DFL | libc::SIG_IGN) {
            return self;
        }
        const RESTORER: u64 = 0x0400_0000;
        Action {
            flags: self.flags | RESTORER,
            restorer: crate::restore::address(),
            mask: self.mask.of_program(),
            ..self
        }
    }
}

/// Has all handlers bring threads back into the machine, and block no SIGSEGV. Those that threads in the machine install from now on do so by themselves.
pub(crate) fn come_back_after_all() {
    (1..=64).for_each(come_back_after);
}

/// Has the handler of a signal bring the thread back into the machine that it interrupts there. Handlers that were installed in the machine do so
/// already.
pub(crate) fn come_back_after(signal: i32) {
    let Some(mut present) = action_of(signal, None) else { return };
    let mut wanted = present.coming_back();
    while wanted != present {
        let Some(found) = action_of(signal, Some(wanted)).filter(|found| *found != present) else { return };
        // Another thread has set it meanwhile: its action stands.
        (present, wanted) = (wanted, found.coming_back());
    }
}

/// A signal's action, which becomes another one if one is given. None for signals that have none.
fn action_of(signal: i32, new: Option<Action>) -> Option<Action> {
    let mut action = Action::default();
    let new = new.as_ref().map_or(0, |new| ptr::from_ref(new) as u64);
    // SAFETY: the kernel reads the one structure and writes the other. The new action is the program's with another way back, which restores the same.
    let answer =
        unsafe { raw::call(libc::SYS_rt_sigaction as u64, [signal as u64, new, &raw mut action as u64, BYTES, 0, 0]) };
    raw::error_of(answer).is_none().then_some(action)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_change_as_the_kernel_changes_them() {
        let (usr1, usr2) = (Signals::of(libc::SIGUSR1), Signals::of(libc::SIGUSR2));
        let both = usr1.changed(libc::SIG_BLOCK as u64, usr2).unwrap();
        assert_eq!(both, Signals(usr1.0 | usr2.0));
        assert_eq!(both.changed(libc::SIG_UNBLOCK as u64, usr1), Some(usr2));
        assert_eq!(both.changed(77, usr1), None);
        let all = both.changed(libc::SIG_SETMASK as u64, Signals::all()).unwrap();
        assert_eq!(all, Signals::all().without(libc::SIGKILL).without(libc::SIGSTOP).without(libc::SIGSEGV));
    }

    #[test]
    fn ignored_signals_are_taken_and_others_wait() {
        std::thread::spawn(|| {
            let before = block();
            // SAFETY: sends signals to this thread, which has them blocked; the first is ignored by default.
            unsafe {
                let thread = libc::pthread_self();
                libc::pthread_kill(thread, libc::SIGWINCH);
                assert!(!must_be_taken(before));
                libc::pthread_kill(thread, libc::SIGWINCH);
                libc::pthread_kill(thread, libc::SIGUSR2);
            }
            assert!(must_be_taken(before));
            assert_eq!(pending(), Signals::of(libc::SIGUSR2));
        })
        .join()
        .unwrap();
    }

    #[test]
    fn one_thread_takes_a_signal_of_the_process() {
        for signal in [libc::SIGUSR1, FIRST_QUEUED + 5] {
            // The child has no other threads.
            // SAFETY: the child ends here.
            let child = unsafe { libc::fork() };
            if child == 0 {
                let before = block();
                // SAFETY: sends a signal that all threads block.
                unsafe { libc::kill(libc::getpid(), signal) };
                let takes = move |own| {
                    let takes = must_be_taken(before);
                    takes == own && waits_for_thread(signal) == own
                };
                let is_right = takes(true) && takes(true) && std::thread::spawn(move || takes(false)).join().unwrap();
                // SAFETY: ends the child.
                unsafe { libc::_exit(i32::from(!is_right)) };
            }
            let mut status = -1;
            // SAFETY: the kernel writes the word.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert_eq!(status, 0, "signal {signal}");
        }
    }
    #[test]
    fn an_action_that_is_set_meanwhile_stands() {
        use std::sync::atomic::{AtomicBool, Ordering};
        extern "C" fn one(_: i32) {}
        extern "C" fn other(_: i32) -> i32 {
            1
        }
        const SIGNAL: i32 = libc::SIGUSR2;
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    come_back_after(SIGNAL);
                }
            });
            for round in 0..200_000 {
                let handler = if round % 2 == 0 { one as *const () as usize } else { other as *const () as usize };
                // SAFETY: nobody sends the signal.
                unsafe { libc::signal(SIGNAL, handler) };
                let mut looks = 0;
                while raw::handler_of(SIGNAL) != handler as u64 && looks < 100_000 {
                    looks += 1;
                }
                if looks == 100_000 {
                    is_over.store(true, Ordering::Relaxed);
                }
                assert!(looks < 100_000, "round {round}");
            }
            is_over.store(true, Ordering::Relaxed);
        });
    }
}
