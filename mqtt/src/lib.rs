//! MQTT for hub and agent.
