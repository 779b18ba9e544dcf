//! The whole swap over a volume that is a list of blocks.
//!
//! | module | what it holds |
//! |---|---|
//! | [`fake`] | the volume, a disk that is late and watches what comes, contents that tell whose they are |
//! | `behaviour` | one thing at a time |
//! | `faults` | requests that fail |
//! | `random` | random interleavings against a plain model |
//! | `together` | several tasks at once, live and in virtual time |

mod behaviour;
mod fake;
mod faults;
mod random;
mod together;
