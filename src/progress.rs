//! Counters that a long loop writes and a caller reads at any time, and the flag that asks the loop to stop.

use crate::error::{Error, Result};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// Shared between a running loop and its observers. Reading never blocks the loop.
#[derive(Debug, Default)]
pub struct Progress {
    /// Set by the watcher; the loop returns [`Error::Stopped`] soon after.
    pub stop: AtomicBool,
    /// Merges done so far.
    pub merges: AtomicU64,
    /// Positions rewritten so far: the work that merging costs.
    pub occurrences: AtomicU64,
    /// Count of the pair that was merged last.
    pub pair_count: AtomicU64,
    /// The pair that was merged last, as `left << 32 | right`.
    pub pair: AtomicU64,
    /// The bytes of the token that was made last.
    pub token: Mutex<Vec<u8>>,
    /// Below this count the pairs of the present round end and another round begins.
    pub floor: AtomicU64,
    /// Rounds whose lists are being made or are ready.
    pub rounds_begun: AtomicU64,
    /// Rounds whose lists are ready.
    pub rounds_ready: AtomicU64,
    /// Nanoseconds it took to make them.
    pub round_nanos: AtomicU64,
    /// Weight of the pair of actions that was merged last: the bits of a float64.
    pub pair_weight: AtomicU64,
    /// Sequences of actions looked at so far: first to count them, then to merge; `occurrences` are those that changed.
    pub visited: AtomicU64,
}

impl Progress {
    /// Fails with [`Error::Stopped`] once a stop was requested.
    pub fn check(&self) -> Result<()> {
        if self.stop.load(Relaxed) { Err(Error::Stopped) } else { Ok(()) }
    }
}
