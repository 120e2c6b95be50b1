//! One value of a page word: which of its 32 bits mean what.

pub(super) const STATE_MASK: u32 = 0b111;
/// In memory but unmapped: the page goes unless a touch comes first. See `inactive.rs`.
pub(super) const INACTIVE: u32 = 1 << 3;
pub(super) const WAITERS: u32 = 1 << 4;
pub(super) const IN_FLIGHT: u32 = 1 << 5;
pub(super) const FRESH: u32 = 1 << 6;
pub(super) const POISONED: u32 = 1 << 7;
pub(super) const EPOCH: u32 = 1 << 8;
pub(super) const PINNED_FOR_WRITING: u32 = 1 << 9;
pub(super) const PIN_SHIFT: u32 = 10;
pub(super) const PIN_MAX: u32 = (1 << 10) - 1;
pub(super) const PIN_MASK: u32 = PIN_MAX << PIN_SHIFT;
pub(super) const FREQUENCY_SHIFT: u32 = 20;
pub(super) const FREQUENCY_MASK: u32 = 0b111 << FREQUENCY_SHIFT;
pub(super) const FREQUENCY_MAX: u8 = (FREQUENCY_MASK >> FREQUENCY_SHIFT) as u8;
/// From this frequency on a dirty page survives visits: after one quick return with S3-FIFO, or two in a row with `KeepRefaulted`.
pub(super) const FREQUENCY_KEPT_DIRTY: u8 = 2;
/// A thread has taken the kernel's note of a store while the page could not be written back: see `inactive.rs`.
pub(super) const STORED: u32 = 1 << 23;
pub(super) const HISTORY_SHIFT: u32 = 24;
pub(super) const HISTORY_MASK: u32 = 0xff << HISTORY_SHIFT;

/// Where a page is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum State {
    /// Not in memory.
    Absent = 0,
    /// One thread is fetching it.
    Loading = 1,
    /// In memory, and the same as on the device (or about to be: in flight). Write-protected, over frames whose stores trap.
    Clean = 2,
    /// In memory and newer than the device.
    Dirty = 3,
    /// A trapped store makes the page writable, or a touch reactivates it.
    Upgrading = 4,
    /// The thread that writes back protects and copies a Dirty page; stores to it wait, loads do not.
    Protecting = 5,
    /// The page is being unmapped.
    Evicting = 6,
}

/// One value of a page word.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Snapshot(pub(super) u32);

impl Snapshot {
    /// The word of a page that has never been in memory, or of which nothing is known any more.
    pub const UNTOUCHED: Self = Self(0);

    /// Where the page is.
    #[inline]
    pub fn state(self) -> State {
        match self.0 & STATE_MASK {
            0 => State::Absent,
            1 => State::Loading,
            2 => State::Clean,
            3 => State::Dirty,
            4 => State::Upgrading,
            5 => State::Protecting,
            _ => State::Evicting,
        }
    }

    /// In memory and owned by no thread.
    #[inline]
    pub fn is_settled_resident(self) -> bool {
        matches!(self.state(), State::Clean | State::Dirty)
    }

    /// Owned by one thread for a short while.
    #[inline]
    pub fn is_busy(self) -> bool {
        !matches!(self.state(), State::Absent | State::Clean | State::Dirty)
    }

    /// In memory, also while a thread evicts, protects or upgrades it. Not while it is Loading.
    #[inline]
    pub fn is_resident(self) -> bool {
        !matches!(self.state(), State::Absent | State::Loading)
    }

    /// On its way out; so is, for a moment, an absent page whose neighbours on both sides go.
    #[inline]
    pub fn is_leaving(self) -> bool {
        self.state() == State::Evicting
    }

    /// A copy of it is on its way to the device.
    #[inline]
    pub fn in_flight(self) -> bool {
        self.0 & IN_FLIGHT != 0
    }

    /// In memory but unmapped: the next touch is a minor fault.
    #[inline]
    pub fn is_inactive(self) -> bool {
        self.0 & INACTIVE != 0
    }

    /// In memory, and a load of it goes through.
    #[inline]
    pub fn is_active(self) -> bool {
        self.is_resident() && !self.is_leaving() && !self.is_inactive()
    }

    /// Active, and not known to be wanted again.
    #[inline]
    pub fn is_new(self) -> bool {
        self.is_active() && self.frequency() == 0
    }

    /// Settled, and known to be newer than the device.
    #[inline]
    pub fn needs_write(self) -> bool {
        self.state() == State::Dirty || self.state() == State::Clean && self.0 & STORED != 0
    }

    /// The device holds garbage here: fill with zeros in place of reading.
    #[inline]
    pub fn is_fresh(self) -> bool {
        self.0 & FRESH != 0
    }

    /// It could not be read and holds the poison pattern.
    #[inline]
    pub fn is_poisoned(self) -> bool {
        self.0 & POISONED != 0
    }

    /// Never resident so far: no history, nothing known.
    #[inline]
    pub fn is_untouched(self) -> bool {
        self.0 & !WAITERS == 0
    }

    /// The parity of the sync epoch in which it became dirty.
    #[inline]
    pub fn epoch(self) -> bool {
        self.0 & EPOCH != 0
    }

    /// Some thread sleeps until the word changes.
    #[inline]
    pub fn is_awaited(self) -> bool {
        self.0 & WAITERS != 0
    }

    /// The number of pins that hold it.
    #[inline]
    pub fn pins(self) -> u32 {
        (self.0 & PIN_MASK) >> PIN_SHIFT
    }

    /// A pin that lets system calls write to the page holds it.
    #[inline]
    pub fn is_pinned_for_writing(self) -> bool {
        self.0 & PINNED_FOR_WRITING != 0
    }

    /// Of a resident page, the evictor's visits that it may survive; of an absent one, the time of its eviction (0: never).
    #[inline]
    pub fn history(self) -> u8 {
        (self.0 >> HISTORY_SHIFT) as u8
    }

    /// How often it came back soon, as the policy counts (0 to 7); kept while it is absent.
    #[inline]
    pub fn frequency(self) -> u8 {
        ((self.0 & FREQUENCY_MASK) >> FREQUENCY_SHIFT) as u8
    }

    pub(super) fn with_frequency(self, frequency: u8) -> Self {
        Snapshot(self.0 & !FREQUENCY_MASK | u32::from(frequency.min(FREQUENCY_MAX)) << FREQUENCY_SHIFT)
    }

    pub(super) fn with_state(self, state: State) -> Self {
        Snapshot(self.0 & !STATE_MASK | state as u32)
    }

    pub(super) fn with(self, flag: u32, on: bool) -> Self {
        Snapshot(if on { self.0 | flag } else { self.0 & !flag })
    }

    pub(super) fn with_history(self, history: u8) -> Self {
        Snapshot(self.0 & !HISTORY_MASK | u32::from(history) << HISTORY_SHIFT)
    }

    pub(super) fn with_pins(self, pins: u32) -> Self {
        Snapshot(self.0 & !PIN_MASK | pins << PIN_SHIFT)
    }
}

impl std::fmt::Debug for Snapshot {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{:?}", self.state())?;
        for (flag, name) in
            [(IN_FLIGHT, "in-flight"), (FRESH, "fresh"), (POISONED, "poisoned"), (PINNED_FOR_WRITING, "pinned-w")]
                .into_iter()
                .chain([(INACTIVE, "inactive"), (STORED, "stored")])
        {
            if self.0 & flag != 0 {
                write!(out, "+{name}")?;
            }
        }
        write!(out, " pins={} history={}", self.pins(), self.history())
    }
}
