//! What shows that a file system is right: a plain model, random operations, crash enumeration,
//! image mutators, and judges that nobody here wrote.
//!
//! The one idea: nothing here trusts the code under test. The model knows no blocks, contents say
//! whose they are, crash states are rebuilt from what reached the device, and the last word is a
//! reference checker's or the kernel's. A failure prints one line that replays it.
//!
//! | module | what it holds |
//! |---|---|
//! | [`stamp`] | contents that identify themselves |
//! | [`content`], [`model`] | the plain model of a POSIX tree |
//! | [`ops`] | operations, and a seeded generator with swarm weights |
//! | [`drive`] | applies operations to volume and model, compares answers |
//! | [`tree`] | what a volume shows, through vfs or through the kernel; comparison with the model |
//! | [`paging`] | swap areas beside the files: pages, and what nobody may overlap |
//! | [`runs`] | blocks taken as swap areas take them |
//! | [`volume`] | mounting a disk, without naming the format |
//! | [`history`] | what a volume must show after a power cut |
//! | [`workloads`] | what is going on when the power fails |
//! | [`crash`] | power failures at every place and in every way |
//! | [`ace`] | all short sequences of operations, with a power cut at every flush |
//! | [`simulate`] | several clients at once, preempted everywhere, over power cuts and device errors |
//! | [`age`] | simulated weeks on one volume: every fill level, many mounts, exact accounting |
//! | [`mutate`], [`exercise`] | damaged images, and using them all the same |
//! | [`family`] | the formats under test: what differs between them, in one place |
//! | [`f2fs_disk`] | what judges and mutators must know of an F2FS disk |
//! | [`image`] | fresh volumes of every geometry |
//! | [`judges`] | the reference checkers, debugfs, the kernel |

pub mod ace;
pub mod age;
pub mod content;
pub mod crash;
pub mod drive;
pub mod exercise;
pub mod f2fs_disk;
pub mod family;
pub mod history;
pub mod image;
pub mod judges;
pub mod model;
pub mod mutate;
pub mod ops;
pub mod paging;
pub mod runs;
pub mod simulate;
pub mod stamp;
pub mod tree;
pub mod volume;
pub mod workloads;
