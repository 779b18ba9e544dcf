//! `.moafs/layout`: where the files of a live mount lie, by jobs ([`crate::job`]).
//!
//! The one that mounts knows how a layout is looked at and what can be asked for: this module only carries questions
//! and answers.

use std::sync::Arc;

use moafs_fuse::Errno;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::control::Audience;
use crate::job::{JobCommand, JobStatus, Jobs, Progress};

/// Name of the control file.
pub const LAYOUT_NAME: &str = "layout";

/// Answers a question about the layout, or says why not. Ends early, with any answer, once its second argument returns
/// false.
pub type LayoutMaker = Arc<dyn Fn(&Value, &mut dyn FnMut() -> bool) -> Result<Value, String> + Send + Sync>;

/// A command, as written to `.moafs/layout`.
pub type LayoutCommand = JobCommand<LayoutJob>;

/// The text of `.moafs/layout`; the outcome is null until the job is done.
pub type LayoutStatus = JobStatus<Value>;

/// A look at the layout.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayoutJob {
    /// Number that tells the job from others; chosen by the program that starts it.
    pub token: u64,
    /// The question, as the [`LayoutMaker`] understands it.
    pub question: Value,
}

/// The jobs of a mount.
pub(crate) struct Layout {
    maker: LayoutMaker,
    jobs: Jobs<Value>,
}

impl Layout {
    pub(crate) fn new(maker: LayoutMaker) -> Layout {
        Layout { maker, jobs: Jobs::new("layout") }
    }

    /// Returns the text of the control file. Users who may not ask do not see what others were answered.
    pub(crate) fn text(&self, audience: Audience) -> Vec<u8> {
        match audience {
            Audience::Owner => self.jobs.text(),
            Audience::Others => Jobs::<Value>::new("layout").text(),
        }
    }

    /// Carries out a command.
    pub(crate) fn command(&self, text: &[u8]) -> Result<(), Errno> {
        self.jobs.command(text, |LayoutJob { token, question }| {
            let maker = Arc::clone(&self.maker);
            (token, move |progress: &Progress<Value>| maker(&question, &mut || progress.goes_on()))
        })
    }

    /// Ends the job and waits for it, before the volume closes.
    pub(crate) fn close(&self) {
        self.jobs.close();
    }
}
