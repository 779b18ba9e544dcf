//! The use of a drive's write cache.

/// The use of the drive's write cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteCache {
    /// On, and never flushed: the paper's system.
    On,
    /// On, and flushed wherever the order of writes asks for it: safe against power cuts.
    Flushed,
    /// Off: every write waits for the media.
    Off,
}

impl WriteCache {
    pub(crate) const ALL: [WriteCache; 3] = [WriteCache::On, WriteCache::Flushed, WriteCache::Off];

    /// Returns its name in parameters and in reports.
    pub fn name(self) -> &'static str {
        match self {
            WriteCache::On => "on",
            WriteCache::Flushed => "flushed",
            WriteCache::Off => "off",
        }
    }
}
