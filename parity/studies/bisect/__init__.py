"""The commit of a repository that made a command fail, found by halving its history.

`repository` reads the history and checks commits out beside the user's files, `judging` runs the command,
`search` halves, `command` is the whole study.
"""
