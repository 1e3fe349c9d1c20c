//! What a job's author may choose about a kernel.

use crate::bindings::exports::omnilearn::kernel::model::{Setting, SettingInfo, SettingValue};
use std::fmt::Debug;
use std::ops::RangeBounds;

/// A kernel's settings; made by [`settings!`](crate::settings!).
pub trait Settings: Sized {
    /// Names, help and defaults.
    fn infos() -> Vec<SettingInfo>;

    /// The defaults, overridden by what the job gives.
    ///
    /// # Errors
    /// An unknown name, a value of the wrong kind or out of range, as a sentence for the job's author.
    fn read(given: Vec<Setting>) -> Result<Self, String>;
}

/// A Rust type that a setting can have.
pub trait SettingKind: Sized + PartialOrd + Debug {
    /// As the job's author writes it.
    fn to_value(self) -> SettingValue;

    /// As the kernel uses it; `None` if the value is of another kind or does not fit the type.
    fn from_value(value: SettingValue) -> Option<Self>;

    #[doc(hidden)]
    fn read(name: &str, value: SettingValue, range: &(impl RangeBounds<Self> + Debug)) -> Result<Self, String> {
        let text = written(&value);
        match Self::from_value(value) {
            Some(value) if range.contains(&value) => Ok(value),
            _ => Err(format!("setting `{name}` is {text}, but must be in {range:?}")),
        }
    }
}

/// A value as it stands in a job file.
fn written(value: &SettingValue) -> String {
    match value {
        SettingValue::Flag(value) => value.to_string(),
        SettingValue::Integer(value) => value.to_string(),
        SettingValue::Number(value) => value.to_string(),
        SettingValue::Text(value) => format!("\"{value}\""),
    }
}

impl SettingKind for u32 {
    fn to_value(self) -> SettingValue {
        SettingValue::Integer(self.into())
    }

    fn from_value(value: SettingValue) -> Option<u32> {
        match value {
            SettingValue::Integer(value) => value.try_into().ok(),
            _ => None,
        }
    }
}

impl SettingKind for f32 {
    fn to_value(self) -> SettingValue {
        // A default of 0.2 is told as 0.2, and not as the nearest `f32`, which is 0.20000000298.
        let value = f64::from(self);
        let mut shorter = (0..10).map(|decimals| 10f64.powi(decimals)).map(|scale| (value * scale).round() / scale);
        SettingValue::Number(shorter.find(|&shorter| shorter as f32 == self).unwrap_or(value))
    }

    fn from_value(value: SettingValue) -> Option<f32> {
        match value {
            SettingValue::Number(value) => Some(value as f32),
            _ => None,
        }
    }
}

impl SettingKind for bool {
    fn to_value(self) -> SettingValue {
        SettingValue::Flag(self)
    }

    fn from_value(value: SettingValue) -> Option<bool> {
        match value {
            SettingValue::Flag(value) => Some(value),
            _ => None,
        }
    }
}

impl SettingKind for String {
    fn to_value(self) -> SettingValue {
        SettingValue::Text(self)
    }

    fn from_value(value: SettingValue) -> Option<String> {
        match value {
            SettingValue::Text(value) => Some(value),
            _ => None,
        }
    }
}

/// What a setting with few values stands for: the other half of the choice that has the given value.
///
/// ```ignore
/// let stride = choose("stem", stem.as_str(), [("small", 1), ("imagenet", 2)])?;
/// ```
///
/// # Errors
/// A value that none of the choices has, as a sentence for the job's author.
pub fn choose<V: PartialEq + Debug, T, const N: usize>(
    name: &str,
    given: V,
    choices: [(V, T); N],
) -> Result<T, String> {
    let values: Vec<String> = choices.iter().map(|(value, _)| format!("{value:?}")).collect();
    let chosen = choices.into_iter().find(|(value, _)| *value == given);
    chosen
        .map(|(_, meaning)| meaning)
        .ok_or_else(|| format!("setting `{name}` is {given:?}, but must be one of {}", values.join(", ")))
}

/// Doc comment lines as one help text.
#[doc(hidden)]
pub fn help(lines: &[&str]) -> String {
    lines.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ")
}

/// Declares a kernel's settings as a struct `Settings`: each has a doc comment, which is its help, a type (`u32`, `f32`,
/// `bool` or `String`), the values it may have (`[..]` for any), and a default.
///
/// ```ignore
/// settings! {
///     /// Number of classes.
///     classes: u32[2..=1000] = 10,
///     /// Probability of dropping a hidden unit in training.
///     dropout: f32[0.0..1.0] = 0.0,
/// }
/// ```
#[macro_export]
macro_rules! settings {
    ($($(#[doc = $help:literal])+ $name:ident : $type:ident [$range:expr] = $default:expr),* $(,)?) => {
        struct Settings {
            $($(#[doc = $help])+ $name: $type,)*
        }

        impl $crate::Settings for Settings {
            fn infos() -> ::std::vec::Vec<$crate::SettingInfo> {
                ::std::vec![$($crate::SettingInfo {
                    name: stringify!($name).into(),
                    help: $crate::help(&[$($help),+]),
                    default: <$type as $crate::SettingKind>::to_value($default),
                }),*]
            }

            fn read(given: ::std::vec::Vec<$crate::bindings::exports::omnilearn::kernel::model::Setting>)
                -> ::std::result::Result<Self, ::std::string::String>
            {
                let mut settings = Settings { $($name: $default),* };
                for setting in given {
                    match setting.name.as_str() {
                        $(stringify!($name) => {
                            settings.$name = <$type as $crate::SettingKind>::read(stringify!($name), setting.value, &($range))?;
                        })*
                        other => return Err(::std::format!("there is no setting `{other}`")),
                    }
                }
                Ok(settings)
            }
        }
    };
}
