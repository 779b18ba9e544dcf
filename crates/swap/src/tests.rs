//! Tests of the whole swap over a volume that is a list of blocks.
//!
//! | module | contents |
//! |---|---|
//! | [`fake`] | the volume, a disk that completes late and checks its requests, contents that identify their page |
//! | `behaviour` | single rules of behaviour |
//! | `faults` | requests that fail |
//! | `random` | random interleavings against a plain model |
//! | `together` | several tasks at once, live and in virtual time |

mod behaviour;
mod fake;
mod faults;
mod random;
mod together;
