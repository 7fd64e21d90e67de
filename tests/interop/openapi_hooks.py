"""Hooks of schemathesis for docs/openapi.json: puts right what no schema can say of a query, so that the
server has to accept all that is left. Requests that it has to refuse stay as they are."""

import schemathesis


def status(query):
    if "after" in query:
        query["after"] = ""  # else the `next` of an answer


def drops(query):
    if "reason" in query:
        query["reason"] = "in_no_state"


def why(query):
    if "drop" in query and not {"source", "destination"} <= query.keys():
        number = query["drop"]
        query.clear()
        query["drop"] = number
        return
    query.pop("drop", None)
    source = query.setdefault("source", "10.1.0.1")
    if (":" in source) != (":" in query.setdefault("destination", source)):
        query["destination"] = source
    if "spi" not in query:
        query.pop("esp_source", None)
        query.pop("esp_destination", None)
    elif query.get("way") == "out":
        query["way"] = "in"


def events(query):
    query["seconds"] = 0  # else it goes on


MENDS = {f"/api/v1/{mend.__name__}": mend for mend in (status, drops, why, events)}


@schemathesis.hook
def before_call(context, case, kwargs):
    is_acceptable = case.meta is None or case.meta.generation.mode.is_positive
    if is_acceptable and (mend := MENDS.get(case.operation.path)):
        mend(case.query)
