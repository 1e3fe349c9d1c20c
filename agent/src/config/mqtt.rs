//! What an agent has to do with a broker.

use std::str::FromStr;
use std::time::Duration;

use omnilearn_mqtt::options::Options;
use omnilearn_mqtt::timings::TimingsFormat;

/// How often batches of timings are sent, unless told otherwise.
const TIMINGS_EVERY_DEFAULT: Duration = Duration::from_secs(1);

/// The broker, and what is said over it.
#[derive(Clone, Debug)]
pub struct MqttConfig {
    /// The broker and how to log in there: without credentials or a certificate, with the agent's name and the hub's token.
    pub options: Options,
    /// How the hub's controller gets the timings of steps.
    pub timings: TimingsWay,
    /// How timings are written.
    pub timings_format: TimingsFormat,
    /// How often a batch of timings is sent at most.
    pub timings_every: Duration,
}

impl MqttConfig {
    /// The default of everything but the broker.
    pub fn new(options: Options) -> MqttConfig {
        MqttConfig {
            options,
            timings: TimingsWay::default(),
            timings_format: TimingsFormat::default(),
            timings_every: TIMINGS_EVERY_DEFAULT,
        }
    }
}

/// How the hub's controller gets the timings of steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TimingsWay {
    /// With each gradient. Those that go to the broker, too, are for others to look at.
    #[default]
    Push,
    /// Over the broker alone.
    Mqtt,
}

/// A text that is neither.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is neither push nor mqtt")]
pub struct UnknownWay(String);

impl FromStr for TimingsWay {
    type Err = UnknownWay;

    fn from_str(text: &str) -> Result<Self, UnknownWay> {
        match text {
            "push" => Ok(Self::Push),
            "mqtt" => Ok(Self::Mqtt),
            _ => Err(UnknownWay(text.to_owned())),
        }
    }
}
