//! What a job may choose about a kernel.

use omnilearn_wire::limits::cut_reason;
use omnilearn_wire::message::{Setting, SettingValue};

use crate::bindings::exports::omnilearn::kernel::model as wit;

/// A setting that a kernel understands.
#[derive(Clone, Debug, PartialEq)]
pub struct SettingInfo {
    /// Name in a job file.
    pub name: String,
    /// One sentence for a job's author.
    pub help: String,
    /// Value if the job gives none; its kind is the kind that the kernel takes.
    pub default: SettingValue,
}

/// Why a job's setting does not go with the kernel.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingError {
    /// The kernel has no such setting.
    #[error("kernel has no setting `{name}`{}", nearest.as_ref().map(|nearest| format!("; did you mean `{nearest}`?")).unwrap_or_default())]
    Unknown {
        /// Name in the job.
        name: String,
        /// The most similar name that the kernel has, if any is similar.
        nearest: Option<String>,
    },
    /// The kernel takes a value of another kind.
    #[error("setting `{name}` is {found}, but the kernel takes {expected}")]
    Kind {
        /// Name in the job.
        name: String,
        /// Kind that the kernel takes.
        expected: &'static str,
        /// Kind in the job.
        found: &'static str,
    },
    /// The job gives it twice.
    #[error("setting `{name}` is given twice")]
    Repeated {
        /// Name in the job.
        name: String,
    },
}

fn kind(value: &SettingValue) -> &'static str {
    match value {
        SettingValue::Flag(_) => "a flag",
        SettingValue::Integer(_) => "an integer",
        SettingValue::Number(_) => "a number",
        SettingValue::Text(_) => "a text",
    }
}

/// Similarity (Jaro and Winkler, 0 to 1) from which on a name is offered as what was meant.
const SIMILAR: f64 = 0.7;

fn nearest(name: &str, infos: &[SettingInfo]) -> Option<String> {
    infos
        .iter()
        .map(|info| (strsim::jaro_winkler(name, &info.name), &info.name))
        .filter(|(similarity, _)| *similarity >= SIMILAR)
        .max_by(|(a, _), (b, _)| a.total_cmp(b))
        .map(|(_, name)| name.clone())
}

/// Checks names and kinds; an integer stands for a number too.
pub(crate) fn check(given: &[Setting], infos: &[SettingInfo]) -> Result<Vec<wit::Setting>, SettingError> {
    let mut checked: Vec<wit::Setting> = Vec::with_capacity(given.len());
    for Setting { name, value } in given {
        let Some(info) = infos.iter().find(|info| info.name == *name) else {
            return Err(SettingError::Unknown { name: name.clone(), nearest: nearest(name, infos) });
        };
        if checked.iter().any(|setting| setting.name == *name) {
            return Err(SettingError::Repeated { name: name.clone() });
        }
        let value = match (&info.default, value) {
            (SettingValue::Number(_), SettingValue::Integer(value)) => wit::SettingValue::Number(*value as f64),
            (SettingValue::Flag(_), SettingValue::Flag(value)) => wit::SettingValue::Flag(*value),
            (SettingValue::Integer(_), SettingValue::Integer(value)) => wit::SettingValue::Integer(*value),
            (SettingValue::Number(_), SettingValue::Number(value)) => wit::SettingValue::Number(*value),
            (SettingValue::Text(_), SettingValue::Text(value)) => wit::SettingValue::Text(value.clone()),
            (expected, found) => {
                return Err(SettingError::Kind { name: name.clone(), expected: kind(expected), found: kind(found) });
            }
        };
        checked.push(wit::Setting { name: name.clone(), value });
    }
    Ok(checked)
}

impl From<wit::SettingInfo> for SettingInfo {
    fn from(info: wit::SettingInfo) -> Self {
        let default = match info.default {
            wit::SettingValue::Flag(value) => SettingValue::Flag(value),
            wit::SettingValue::Integer(value) => SettingValue::Integer(value),
            wit::SettingValue::Number(value) => SettingValue::Number(value),
            wit::SettingValue::Text(value) => SettingValue::Text(cut_reason(value)),
        };
        SettingInfo { name: cut_reason(info.name), help: cut_reason(info.help), default }
    }
}
