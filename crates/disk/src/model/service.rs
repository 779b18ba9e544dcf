//! Commands to a drive, the time each takes by component, and sums of these.

use moafs_runtime::Time;

use crate::{Lba, SECTOR};

/// The operation of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum Verb {
    /// Reads sectors, from the media or the buffer.
    Read,
    /// Writes sectors; they may stay in the drive's buffer.
    Write,
    /// Writes sectors to the media before the command completes.
    WriteFua,
    /// Writes the whole buffer to the media.
    Flush,
    /// The contents of the sectors are no longer needed.
    Discard,
}

impl Verb {
    /// Returns true for commands that move data.
    pub fn is_transfer(self) -> bool {
        self == Verb::Read || self.is_write()
    }

    /// Returns true for both kinds of write.
    pub fn is_write(self) -> bool {
        matches!(self, Verb::Write | Verb::WriteFua)
    }
}

/// One command to a drive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Command {
    /// The operation of the command.
    pub verb: Verb,
    /// The first sector; without meaning for a flush.
    pub at: Lba,
    /// Length in sectors; 0 for a flush.
    pub sectors: u64,
}

impl Command {
    /// Makes a read of `sectors` sectors from `at`.
    pub fn read(at: u64, sectors: u64) -> Command {
        Command { verb: Verb::Read, at: Lba(at), sectors }
    }

    /// Makes a write that may stay in the buffer.
    pub fn write(at: u64, sectors: u64) -> Command {
        Command { verb: Verb::Write, at: Lba(at), sectors }
    }

    /// Makes a discard (TRIM, ERASE).
    pub fn discard(at: u64, sectors: u64) -> Command {
        Command { verb: Verb::Discard, at: Lba(at), sectors }
    }

    /// Makes a flush of the buffer.
    pub fn flush() -> Command {
        Command { verb: Verb::Flush, at: Lba(0), sectors: 0 }
    }

    /// Returns the sector behind the last one.
    pub fn end(&self) -> u64 {
        self.at.0 + self.sectors
    }
}

/// The time that one command took, by component. The fields named `_ns` add up to `finished -
/// started`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Service {
    /// The time the drive began the command: on arrival, or when the command before was done.
    pub started: Time,
    /// The time the host got the answer.
    pub finished: Time,
    /// Time of the drive's electronics: decoding, set-up.
    pub overhead_ns: u64,
    /// Time waiting for the buffer or its background work: room for a write, a destage under way, read-ahead that has
    /// yet to reach the requested sectors, a flush; or for a chip that is busy with earlier commands.
    pub wait_ns: u64,
    /// Time waiting for a flash drive to free space: copies and erases of garbage collection and
    /// merges.
    pub gc_ns: u64,
    /// Time moving the arm to the first sector's track, head switch and write settle included.
    pub seek_ns: u64,
    /// Time until the first sector is under the head.
    pub rotation_ns: u64,
    /// Time of sectors passing under the head, track and cylinder crossings included; or of flash pages read, loaded
    /// and programmed.
    pub transfer_ns: u64,
    /// Time on the bus that does not overlap with the media.
    pub bus_ns: u64,
    /// Cylinders between the arm's position and the first sector's; 0 for commands that did not move it.
    pub seek_cylinders: u32,
    /// Sectors between the end of the last access to the media and this one's first; 0 without a seek.
    pub seek_sectors: u64,
    /// True if the command needed no access to the media of its own.
    pub cached: bool,
}

impl Service {
    /// Returns the nanoseconds from start to end.
    pub fn service_ns(&self) -> u64 {
        self.finished.0 - self.started.0
    }

    /// Returns true if the arm had to move to another cylinder.
    pub fn is_seek(&self) -> bool {
        self.seek_cylinders != 0
    }
}

moafs_runtime::counters! {
    /// Sums over served commands.
    #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
    pub struct Totals {
        /// Number of reads and writes.
        requests: u64,
        /// The number of reads.
        reads: u64,
        /// The number of writes.
        writes: u64,
        /// Bytes read, in total.
        read_bytes: u64,
        /// Bytes written, in total.
        written_bytes: u64,
        /// Number of flush commands.
        flushes: u64,
        /// Number of discard commands.
        discards: u64,
        /// Number of reads and writes answered without an access of their own to the media.
        cached: u64,
        /// Number of commands for which the arm moved to another cylinder.
        seeks: u64,
        /// Cylinders crossed by these seeks.
        seek_cylinders: u64,
        /// Sectors from the end of the access before to the first of these seeks, summed.
        seek_sectors: u64,
        /// Time that commands waited at the drive for earlier commands.
        queue_ns: u64,
        /// Time from start to end of commands, flushes and discards included.
        service_ns: u64,
        /// Sum of all [`Service::overhead_ns`].
        overhead_ns: u64,
        /// Sum of all [`Service::wait_ns`].
        wait_ns: u64,
        /// Sum of all [`Service::gc_ns`].
        gc_ns: u64,
        /// Sum of all [`Service::seek_ns`].
        seek_ns: u64,
        /// Sum of all [`Service::rotation_ns`].
        rotation_ns: u64,
        /// Sum of all [`Service::transfer_ns`].
        transfer_ns: u64,
        /// Sum of all [`Service::bus_ns`].
        bus_ns: u64,
        /// Time without a command at the drive (it may have destaged or read ahead), up to the start of the last
        /// command.
        idle_ns: u64,
    }
}

impl Totals {
    /// Adds a command that arrived at `arrived`.
    pub fn add(&mut self, command: &Command, arrived: Time, service: &Service) {
        let bytes = command.sectors * SECTOR as u64;
        match command.verb {
            Verb::Read => (self.reads, self.read_bytes) = (self.reads + 1, self.read_bytes + bytes),
            Verb::Write | Verb::WriteFua => {
                (self.writes, self.written_bytes) = (self.writes + 1, self.written_bytes + bytes);
            }
            Verb::Flush => self.flushes += 1,
            Verb::Discard => self.discards += 1,
        }
        self.requests = self.reads + self.writes;
        self.cached += u64::from(service.cached && command.verb.is_transfer());
        self.seeks += u64::from(service.is_seek());
        self.seek_cylinders += u64::from(service.seek_cylinders);
        self.seek_sectors += service.seek_sectors;
        self.queue_ns += service.started.0 - arrived.0;
        self.service_ns += service.service_ns();
        self.overhead_ns += service.overhead_ns;
        self.wait_ns += service.wait_ns;
        self.gc_ns += service.gc_ns;
        self.seek_ns += service.seek_ns;
        self.rotation_ns += service.rotation_ns;
        self.transfer_ns += service.transfer_ns;
        self.bus_ns += service.bus_ns;
    }
}
