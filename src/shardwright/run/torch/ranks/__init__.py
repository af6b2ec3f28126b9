"""Processes that run one program together: how they find each other, agree, and end when one of them fails.

| file | what it holds |
|---|---|
| `joining` | how processes find each other; who is missing; whether machines are as the mesh says |
| `loading` | state that all ranks start from: rank 0's, sent shard by shard, or compared |
| `safety` | ranks compare what they run; a fault on one of them becomes an error on all |
| `watch` | two threads that look after the other ranks, and end the process where nothing else can |
| `waiting` | how long a rank may be waited for, by what it is doing |
| `agreement` | 16 bytes a step: ranks train with the same options, program and inputs |
| `processes` | whether a process is there, as the kernel says |
"""
