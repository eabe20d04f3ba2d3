"""What is measured on a DynamoDB engine, by name. Whose libraries are installed is another matter."""

from __future__ import annotations

from .peers import KEY

OURS, PEER, BARE = "headgate acquire", "zae-limiter acquire", "aiobotocore UpdateItem"

LONE = "dynamodb, one task"
CASCADE = "dynamodb, one task, cascade of two"
HOT = "dynamodb, 64 tasks, one entity"
SPREAD = "dynamodb, 64 tasks, an entity each"
REFUSALS = "dynamodb, one task, refused"

TASKS = 64
PARENT, CHILD = "parent", "child"
# For each task that acquires, its entity.
ENTITIES = {
    LONE: [KEY],
    CASCADE: [CHILD],
    HOT: [KEY] * TASKS,
    SPREAD: [f"user-{number}" for number in range(TASKS)],
}
