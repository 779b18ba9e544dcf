//! Processor time as a stated parameter: so much per call, so much per byte.
//!
//! The paper's machine is a 1 GHz Pentium III. The paper does not give the cost of its system
//! calls, so these are plausible figures of such a machine (a system call with a name look-up tens
//! of microseconds, copying some hundred MB/s), not found ones. They are small beside a seek;
//! `--set cpu_percent=…` scales them all, 0 leaves the device alone.

/// Processor time per call, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cpu {
    /// Looking a name up and opening what it names.
    pub open_ns: u64,
    /// Making a file or directory.
    pub create_ns: u64,
    /// Removing a name from a directory.
    pub unlink_ns: u64,
    /// A read or write call.
    pub call_ns: u64,
    /// Listing an entry of a directory.
    pub entry_ns: u64,
    /// Copying one KiB between a program and the cache.
    pub copy_kib_ns: u64,
}

impl Cpu {
    /// A machine of 1 GHz.
    pub const PENTIUM_III: Cpu = Cpu {
        open_ns: 25_000,
        create_ns: 80_000,
        unlink_ns: 60_000,
        call_ns: 10_000,
        entry_ns: 1_000,
        copy_kib_ns: 4_000,
    };

    /// Returns the same machine with all times scaled to `percent` percent.
    pub fn scaled(self, percent: u64) -> Cpu {
        let scale = |ns: u64| ns * percent / 100;
        Cpu {
            open_ns: scale(self.open_ns),
            create_ns: scale(self.create_ns),
            unlink_ns: scale(self.unlink_ns),
            call_ns: scale(self.call_ns),
            entry_ns: scale(self.entry_ns),
            copy_kib_ns: scale(self.copy_kib_ns),
        }
    }

    /// Returns the time of a call that copies `bytes` bytes, in nanoseconds.
    pub fn copy_ns(&self, bytes: usize) -> u64 {
        self.call_ns + self.copy_kib_ns * bytes as u64 / 1024
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_costs_its_entry_and_its_bytes() {
        let cpu = Cpu::PENTIUM_III;
        assert_eq!(cpu.copy_ns(16 << 10), 10_000 + 16 * 4_000);
        assert_eq!(cpu.scaled(0).copy_ns(1 << 20), 0);
    }
}
