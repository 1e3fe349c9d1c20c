//! What the fleet trains: the hub's own job file, and keys that differ from it.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use omnilearn_datasets::Library;
use omnilearn_hub::offline::{OfflineError, OfflineJob};
use omnilearn_hub_core::JobConfig;
use omnilearn_hub_core::config::{Batching, Controller, Mode};

/// Why there is no job.
#[derive(Debug, thiserror::Error)]
pub enum JobError {
    /// The file itself.
    #[error("cannot read the job file {}: {cause}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        cause: std::io::Error,
    },
    /// What the hub would say.
    #[error("{}: {cause}", path.display())]
    Plan {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        #[source]
        cause: Box<OfflineError>,
    },
    /// A key of `--set` that cannot be set in this file.
    #[error(transparent)]
    Override(#[from] OverrideError),
}

/// A `--set` that makes no sense.
#[derive(Debug, thiserror::Error)]
pub enum OverrideError {
    /// Not `KEY=VALUE`.
    #[error("`{text}` is not KEY=VALUE, such as batching.policy=uniform")]
    Form {
        /// What was written.
        text: String,
    },
    /// The file is no TOML.
    #[error("the job file: {0}")]
    Toml(#[from] toml::de::Error),
    /// A part of the key is a value in the file.
    #[error("--set {text}: `{part}` is a value in the job file, not a section")]
    NoSection {
        /// What was written.
        text: String,
        /// The part of the key.
        part: String,
    },
    /// The changed file cannot be written.
    #[error("--set: {0}")]
    Write(#[from] toml::ser::Error),
}

/// One key of a job file and its value, such as `batching.policy=uniform`. A value that is no TOML is a text.
#[derive(Clone, Debug, PartialEq)]
pub struct Override {
    text: String,
    key: Vec<String>,
    value: toml::Value,
}

impl FromStr for Override {
    type Err = OverrideError;

    fn from_str(text: &str) -> Result<Override, OverrideError> {
        let form = || OverrideError::Form { text: text.to_owned() };
        let (key, value) = text.split_once('=').ok_or_else(form)?;
        let key: Vec<String> = key.trim().split('.').map(|part| part.trim().to_owned()).collect();
        if key.iter().any(String::is_empty) {
            return Err(form());
        }
        let value = value.trim();
        let parsed = toml::from_str::<toml::Table>(&format!("value = {value}")).ok();
        let parsed = parsed.filter(|table| table.len() == 1).and_then(|mut table| table.remove("value"));
        let value = parsed.unwrap_or_else(|| toml::Value::String(value.to_owned()));
        Ok(Override { text: text.to_owned(), key, value })
    }
}

impl std::fmt::Display for Override {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&self.text)
    }
}

/// The text of a job file with these keys in place of its own. Without any, the text as it is.
///
/// # Errors
/// [`OverrideError`] where a key does not fit the file.
pub fn with_overrides(text: &str, overrides: &[Override]) -> Result<String, OverrideError> {
    if overrides.is_empty() {
        return Ok(text.to_owned());
    }
    let mut job: toml::Table = toml::from_str(text)?;
    for Override { text, key, value } in overrides {
        let (last, sections) = key.split_last().expect("a key has at least one part");
        let mut table = &mut job;
        for part in sections {
            let section = table.entry(part.clone()).or_insert_with(|| toml::Value::Table(toml::Table::new()));
            let no_section = || OverrideError::NoSection { text: text.clone(), part: part.clone() };
            table = section.as_table_mut().ok_or_else(no_section)?;
        }
        table.insert(last.clone(), value.clone());
    }
    Ok(toml::to_string(&job)?)
}

/// Reads a job file and what it names, as `omnilearn-hub submit` to a hub with this library would.
///
/// # Errors
/// [`JobError`], as the hub would refuse it.
pub fn read(path: &Path, overrides: &[Override], library: &Library) -> Result<OfflineJob, JobError> {
    let text = std::fs::read_to_string(path).map_err(|cause| JobError::Read { path: path.to_owned(), cause })?;
    let text = with_overrides(&text, overrides)?;
    let folder = path.parent().unwrap_or(Path::new(""));
    let plan = |cause| JobError::Plan { path: path.to_owned(), cause: Box::new(cause) };
    OfflineJob::plan(&text, folder, library).map_err(plan)
}

/// What a simulation needs to know of a job.
#[derive(Clone, Debug)]
pub struct Job {
    /// What the core is asked to do.
    pub config: JobConfig,
    /// Bytes of the parameters, and of a gradient, on the way.
    pub stream_bytes: u64,
    /// Batch sizes at which agents time themselves before they take part.
    pub calibration_batches: Vec<u32>,
    /// The mode, as in a job file.
    pub mode: String,
    /// The policy, as in a job file.
    pub policy: String,
}

impl Job {
    /// The job that a file describes.
    pub fn new(job: &OfflineJob) -> Job {
        let (config, view) = (job.config().clone(), job.view());
        Job {
            stream_bytes: job.layout().stream_bytes(config.codec),
            calibration_batches: job.offer(None).calibration_batches,
            mode: view.mode,
            policy: view.policy,
            config,
        }
    }

    /// Whether every step is behind a barrier, over one global batch.
    pub fn is_bsp(&self) -> bool {
        self.config.mode == Mode::Bsp
    }

    /// The controller, as in a job file; none where batches are not moved.
    pub fn controller(&self) -> Option<&'static str> {
        match self.config.batching {
            Batching::Dynamic { controller: Controller::Deadline, .. } => Some("deadline"),
            Batching::Dynamic { controller: Controller::Proportional, .. } => Some("proportional"),
            Batching::Dynamic { controller: Controller::Epoch { .. }, .. } => Some("epoch"),
            Batching::Uniform | Batching::Static => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn overrides(texts: &[&str]) -> Vec<Override> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn keys_are_set_in_their_sections_as_toml_or_as_text() {
        let text = "dataset = \"mnist\"\nkernel.path = \"a.wasm\"\n[batching]\npolicy = \"dynamic\"\ngain = 0.5\n";
        let set = overrides(&["batching.policy=uniform", "stop.epochs=3", "asp.damping = true", "seed=7"]);
        let changed: toml::Table = toml::from_str(&with_overrides(text, &set).unwrap()).unwrap();
        let expected: toml::Table = toml::from_str(
            "dataset = \"mnist\"\nseed = 7\nkernel.path = \"a.wasm\"\nbatching = { policy = \"uniform\", gain = 0.5 }\n\
             stop.epochs = 3\nasp.damping = true\n",
        )
        .unwrap();
        assert_eq!(changed, expected);
        assert_eq!(with_overrides(text, &[]).unwrap(), text);
    }

    #[test]
    fn what_is_no_key_and_value_is_answered_with_an_example() {
        for text in ["batching.policy", "=3", "a..b=1"] {
            let message = text.parse::<Override>().unwrap_err().to_string();
            assert_eq!(message, format!("`{text}` is not KEY=VALUE, such as batching.policy=uniform"));
        }
        let message = with_overrides("seed = 1\n", &overrides(&["seed.x=1"])).unwrap_err().to_string();
        assert_eq!(message, "--set seed.x=1: `seed` is a value in the job file, not a section");
    }
}
