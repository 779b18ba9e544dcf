//! Tests of whole file systems: a plain model, random operations, crash enumeration, image mutators, and independent
//! judges.
//!
//! Nothing here trusts the code under test. The model knows no blocks, contents identify their file, crash states are
//! rebuilt from the requests that reached the device, and a reference checker or the kernel decides. A failure prints
//! one line that replays it.
//!
//! | module | what it holds |
//! |---|---|
//! | [`stamp`] | contents that identify themselves |
//! | [`content`], [`model`] | the plain model of a POSIX tree |
//! | [`ops`] | operations, and a seeded generator with swarm weights |
//! | [`drive`] | applies operations to volume and model, compares answers |
//! | [`tree`] | the tree of a volume, read through vfs or through the kernel; comparison with the model |
//! | [`paging`] | swap areas beside the files: pages, and blocks that may not overlap |
//! | [`runs`] | blocks taken as swap areas take them |
//! | [`volume`] | mounting a disk, without naming the format |
//! | [`history`] | the states that a volume may show after a power cut |
//! | [`workloads`] | sequences of operations during which the power fails |
//! | [`crash`] | power failures at every place and in every way |
//! | [`ace`] | all short sequences of operations, with a power cut at every flush |
//! | [`simulate`] | several clients at once, preempted everywhere, over power cuts and device errors |
//! | [`age`] | simulated weeks on one volume: every fill level, many mounts, exact accounting |
//! | [`mutate`], [`exercise`] | damaged images, and their use |
//! | [`family`] | the formats under test: all differences between them, in one place |
//! | [`f2fs_disk`] | the structures of F2FS, for judges and mutators |
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
