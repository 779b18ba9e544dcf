//! The policies that tell hot data from cold.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

use crate::format::Log;

/// The values of `-o temperature=`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Temperature {
    /// By kind, as the format's users expect: see [`super::kind`].
    #[default]
    Kind,
    /// By reference counts: see [`super::wolf`].
    Wolf,
}

/// The heat of a block, as WOLF counts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Heat {
    /// Referenced often: it will soon be written again.
    Hot,
    /// Referenced seldom: it will probably stay valid for long.
    Cold,
}

impl Heat {
    /// Returns the log of data that it joins.
    pub fn data_log(self) -> Log {
        match self {
            Heat::Hot => Log::HotData,
            Heat::Cold => Log::ColdData,
        }
    }
}

impl Temperature {
    /// Both policies, in the order of their declaration.
    pub const ALL: [Temperature; 2] = [Temperature::Kind, Temperature::Wolf];

    /// Returns the name by which options and tables know it.
    pub fn name(self) -> &'static str {
        match self {
            Temperature::Kind => "kind",
            Temperature::Wolf => "wolf",
        }
    }
}

impl fmt::Display for Temperature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Temperature {
    type Err = String;

    fn from_str(name: &str) -> Result<Temperature, String> {
        let found = Temperature::ALL.into_iter().find(|temperature| temperature.name() == name);
        found.ok_or_else(|| format!("there is no temperature \"{name}\"; there are kind, wolf"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_values_are_one_to_one() {
        for temperature in Temperature::ALL {
            assert_eq!(temperature.to_string().parse(), Ok(temperature));
        }
        assert!("none".parse::<Temperature>().is_err());
    }
}
