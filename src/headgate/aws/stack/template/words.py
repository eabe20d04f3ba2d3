"""CloudFormation's functions, and the names of conditions."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]

NO_VALUE: Json = {"Ref": "AWS::NoValue"}

HAS_FUNCTIONS = "HasFunctions"
HAS_ARCHIVE = "HasArchive"
HAS_ALARMS = "HasAlarms"
HAS_FUNCTION_ALARMS = "HasFunctionAlarms"
HAS_KEY = "HasKey"
HAS_NAMESPACE = "HasNamespace"
HAS_TOPIC = "HasTopic"
HAS_EMAIL = "HasEmail"
HAS_BOUNDARY = "HasBoundary"


def ref(name: str) -> Json:
    return {"Ref": name}


def att(name: str, attribute: str) -> Json:
    return {"Fn::GetAtt": [name, attribute]}


def sub(text: str, **values: Any) -> Json:
    return {"Fn::Sub": [text, values] if values else text}


def when(condition: str, then: Any, otherwise: Any = NO_VALUE) -> Json:
    return {"Fn::If": [condition, then, otherwise]}


def conditions() -> Json:
    def given(name: str) -> Json:
        return {"Fn::Not": [{"Fn::Equals": [ref(name), ""]}]}

    def on(name: str) -> Json:
        return {"Fn::Equals": [ref(name), "true"]}

    def condition(name: str) -> Json:
        return {"Condition": name}

    return {
        HAS_FUNCTIONS: given("CodeKey"),
        HAS_ARCHIVE: on("Archive"),
        HAS_ALARMS: on("Alarms"),
        HAS_FUNCTION_ALARMS: {"Fn::And": [condition(HAS_ALARMS), condition(HAS_FUNCTIONS)]},
        HAS_KEY: given("KmsKeyArn"),
        HAS_NAMESPACE: given("NamespaceId"),
        HAS_TOPIC: given("AlarmTopicArn"),
        HAS_EMAIL: {"Fn::And": [given("AlarmEmail"), condition(HAS_ALARMS)]},
        HAS_BOUNDARY: given("PermissionsBoundaryArn"),
    }
